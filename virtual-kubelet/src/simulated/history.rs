//! What a simulated container went through, as its log tells it; no I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::process::backoff::printed;

/// Exit code of a container that was killed after its grace period.
pub(super) const KILLED: i32 = 137;

/// Most events of one container that are kept.
const KEPT: usize = 32;

/// Why a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// By itself.
    Own,
    /// It has another image.
    Replaced,
    /// It was told to, for good.
    Stopped,
}

/// Something that happened to a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The pull of this image began.
    Pulling(Arc<str>),
    Pulled,
    PullFailed,
    /// No container is made, for this reason.
    Refused(Arc<str>),
    /// This run began, counted from 1.
    Started(u32),
    Ready,
    Unready,
    /// Its pod was told to end.
    Stopping,
    Ended(i32, Why),
    /// It is made again after so long.
    BackOff(SignedDuration),
}

impl Event {
    fn text(&self) -> String {
        match self {
            Self::Pulling(image) => format!("pulling image {image}"),
            Self::Pulled => "the image is present".into(),
            Self::PullFailed => "cannot pull the image".into(),
            Self::Refused(why) => format!("not created: {why}"),
            Self::Started(run) => format!("started, run {run}"),
            Self::Ready => "ready".into(),
            Self::Unready => "no longer ready".into(),
            Self::Stopping => "stopping".into(),
            Self::Ended(code, Why::Replaced) => format!("ended with code {code}, to run another image"),
            Self::Ended(KILLED, Why::Stopped) => format!("killed after the grace period, code {KILLED}"),
            Self::Ended(code, _) => format!("ended with code {code}"),
            Self::BackOff(pause) => format!("starts again after {}", printed(*pause)),
        }
    }
}

/// The newest events of one container.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    events: VecDeque<(Timestamp, Event)>,
    /// How many older ones are not kept.
    dropped: u64,
}

impl History {
    pub fn note(&mut self, at: Timestamp, event: Event) {
        if self.events.len() == KEPT {
            self.events.pop_front();
            self.dropped += 1;
        }
        self.events.push_back((at, event));
    }

    /// As a log.
    pub fn log(&self, over: bool) -> ContainerLog {
        let started = self.events.iter().rposition(|(_, event)| matches!(event, Event::Started(_)));
        let ended = |upto: usize| self.events.iter().take(upto).rposition(|(_, event)| matches!(event, Event::Ended(..)));
        ContainerLog {
            lines: self.events.iter().map(|(at, event)| format!("{at} stdout F {}", event.text())).collect(),
            before: self.dropped,
            previous: started.and_then(ended).map(|ended| ended + 1),
            over,
        }
    }
}

/// The log of a container: what it went through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerLog {
    /// Its newest lines, in the format of container runtimes.
    pub lines: Vec<String>,
    /// How many there were before.
    pub before: u64,
    /// How many of `lines` are of the runs before the present one, if there were such.
    pub previous: Option<usize>,
    /// Nothing will be added.
    pub over: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_history_keeps_newest_lines_and_counts_others() {
        let mut history = History::default();
        for run in 1..=100 {
            history.note(Timestamp::UNIX_EPOCH, Event::Started(run));
            history.note(Timestamp::UNIX_EPOCH, Event::Ended(1, Why::Own));
        }
        let log = history.log(false);
        assert_eq!((log.lines.len(), log.before), (KEPT, 200 - KEPT as u64));
        assert_eq!(log.lines[KEPT - 2], "1970-01-01T00:00:00Z stdout F started, run 100");
        assert_eq!(log.previous, Some(KEPT - 2));
    }
}
