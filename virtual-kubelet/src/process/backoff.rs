//! Pauses between restarts of a container and between pulls of an image; no I/O.

use jiff::{SignedDuration, Timestamp};

const FIRST: SignedDuration = SignedDuration::from_secs(10);
const CAP: SignedDuration = SignedDuration::from_secs(300);
/// A thing that went well for so long starts over.
const FORGIVEN_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// The pause of one thing. The first repetition is immediate, the second waits 10 s, and each further one
/// twice as long, up to 300 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    last: Option<(SignedDuration, Timestamp)>,
}

impl Backoff {
    fn current(&self, failed_at: Timestamp) -> Option<SignedDuration> {
        let (pause, since) = self.last?;
        (failed_at.duration_since(since) <= FORGIVEN_AFTER).then_some(pause)
    }

    /// Until when to wait after a failure at `failed_at`, and how long that is; `None` means not at all.
    pub fn wait(&self, failed_at: Timestamp) -> Option<(Timestamp, SignedDuration)> {
        let pause = self.current(failed_at)?;
        Some((failed_at.saturating_add(pause).unwrap_or(failed_at), pause))
    }

    /// Notes a repetition at `now` after a failure at `failed_at`.
    pub fn repeat(&mut self, failed_at: Timestamp, now: Timestamp) {
        let pause = self.current(failed_at).map_or(FIRST, |pause| pause.saturating_mul(2).min(CAP));
        self.last = Some((pause, now));
    }
}

/// A pause as Kubernetes prints it: `10s`, `1m20s`, `5m0s`.
pub fn printed(pause: SignedDuration) -> String {
    let seconds = pause.as_secs();
    if seconds < 60 { format!("{seconds}s") } else { format!("{}m{}s", seconds / 60, seconds % 60) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn restart_pauses_double_from_ten_seconds_to_five_minutes() {
        let mut backoff = Backoff::default();
        let mut pauses = vec![];
        for crash in 0..8 {
            let pause = backoff.wait(at(crash)).map_or(0, |(_, pause)| pause.as_secs());
            pauses.push(pause);
            backoff.repeat(at(crash), at(crash));
        }
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn ten_minutes_without_a_crash_are_forgiven() {
        let mut backoff = Backoff::default();
        backoff.repeat(at(0), at(0));
        backoff.repeat(at(1), at(1));
        assert_eq!(backoff.wait(at(601)).map(|(until, _)| until), Some(at(621)));
        assert_eq!(backoff.wait(at(602)), None);
        backoff.repeat(at(602), at(602));
        assert_eq!(backoff.wait(at(603)).map(|(_, pause)| pause.as_secs()), Some(10));
    }

    #[test]
    fn pauses_are_printed_in_minutes_and_seconds() {
        assert_eq!(printed(SignedDuration::from_secs(40)), "40s");
        assert_eq!(printed(SignedDuration::from_secs(300)), "5m0s");
    }
}
