//! Windows of time in which nodes may be started.
//!
//! The windows of a spec and a time come in; whether they are open then, and until when, goes out ([`Opening`]). The planner and the
//! auditor ask. Nothing here reads a clock, or knows a rollout.

use chrono::{DateTime, MappedLocalTime, NaiveDateTime, TimeDelta, TimeZone as _, Timelike as _, Utc};
use chrono_tz::Tz;
use crds::ingress_daemon_set::Window;
use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};

/// How far ahead a change is looked for: a yearly window is found on any day.
const LOOK_AHEAD: TimeDelta = TimeDelta::days(367);
/// How many beginnings and ends are looked at. Every other one is a minute later at the least, since starts are on whole minutes
/// and no window is shorter.
const STARTS: i64 = 256;
const MINUTE: TimeDelta = TimeDelta::minutes(1);
/// Bounds of a duration in seconds, those of the schema: a minute and 31 days.
const DURATIONS: std::ops::RangeInclusive<i64> = 60..=31 * 86_400;

/// The windows of a spec. None at all: always open.
///
/// A window begins when its schedule, in its time zone, says so, and lasts as long as its duration on a clock that is never
/// set: three hours are three hours in the nights when clocks change, too. A start at a time of day that a change of clocks leaves
/// out comes at the first instant after the gap, and one at a time of day that comes twice at the first of the two. Only a schedule for
/// every hour of the day starts in both, or a day and night covered by it would have a hole.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    allow: Vec<Spans>,
    deny: Vec<Spans>,
}

/// Whether a node may be started, and for how long that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Within a window that allows (or there are none that do), and within none that denies.
    pub open: bool,
    /// The next instant at which the answer is another one; `None` when there is none within 367 days, or none was found in
    /// bounded time. The answer then still holds for [`Windows::SURE_FOR`].
    pub changes_at: Option<DateTime<Utc>>,
}

impl Windows {
    /// How long an answer holds at the least when it does not say when it changes: ask again by then.
    pub const SURE_FOR: TimeDelta = TimeDelta::minutes(STARTS / 2);

    /// Reads the windows of a spec, or says which one cannot be read and what to write instead.
    pub fn parse(windows: &[Window]) -> Result<Self, String> {
        let mut parsed = Self::default();
        for (index, window) in windows.iter().enumerate() {
            let spans = Spans::parse(window).map_err(|(field, problem)| format!("windows[{index}].{field}: {problem}"))?;
            let kind = if window.deny { &mut parsed.deny } else { &mut parsed.allow };
            kind.push(spans);
        }
        Ok(parsed)
    }

    /// Whether a node may be started now, and when that changes.
    pub fn at(&self, now: DateTime<Utc>) -> Opening {
        // Windows begin and end on whole seconds.
        let now = now.with_nanosecond(0).unwrap_or(now);
        let open = self.is_open(now);
        let changes_at = if open { self.closes(now) } else { self.opens(now) };
        Opening { open, changes_at: changes_at.filter(|time| *time <= now + LOOK_AHEAD) }
    }

    fn is_open(&self, now: DateTime<Utc>) -> bool {
        let within = |spans: &Spans| spans.end(now).is_some();
        !self.deny.iter().any(within) && (self.allow.is_empty() || self.allow.iter().any(within))
    }

    /// When what is open closes: when a window that denies begins, or when those that allow are over.
    fn closes(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let denied = self.deny.iter().filter_map(|spans| spans.next_start(now)).min();
        let over = || {
            let mut time = now;
            for _ in 0..STARTS {
                match latest_end(&self.allow, time) {
                    None => return Some(time),
                    Some(end) if end > now + LOOK_AHEAD => return None,
                    Some(end) => time = end,
                }
            }
            None
        };
        let over = if self.allow.is_empty() { None } else { over() };
        denied.into_iter().chain(over).min()
    }

    /// When what is closed opens: from the end of windows that deny to the start of one that allows, until both agree.
    fn opens(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let mut time = now;
        for _ in 0..STARTS {
            time = match latest_end(&self.deny, time) {
                Some(end) => end,
                None => self.allow.iter().filter_map(|spans| spans.next_start(time)).min()?,
            };
            if time > now + LOOK_AHEAD {
                return None;
            }
            if self.is_open(time) {
                return Some(time);
            }
        }
        None
    }
}

/// The last end of those that are under way.
fn latest_end(spans: &[Spans], now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    spans.iter().filter_map(|spans| spans.end(now)).max()
}

/// One window of a spec: the spans of time that it stands for.
#[derive(Clone, Debug)]
struct Spans {
    cron: Cron,
    zone: Tz,
    length: TimeDelta,
    every_hour: bool,
}

impl Spans {
    fn parse(window: &Window) -> Result<Self, (&'static str, String)> {
        let zone: Tz = window.time_zone.parse().map_err(|_| {
            let problem = format!("`{}` is not a time zone of the IANA database such as Europe/Berlin or UTC", window.time_zone);
            ("timeZone", problem)
        })?;
        let seconds = window.duration.milliseconds().map(|millis| millis.saturating_add(999) / 1000);
        let seconds = seconds.filter(|seconds| DURATIONS.contains(seconds)).ok_or_else(|| {
            let problem = format!("`{}` is not a duration from 1m to 744h such as 3h or 1h30m", window.duration);
            ("duration", problem)
        })?;
        let cron = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build().parse(&window.schedule);
        let cron = cron.map_err(|error| {
            let form = "a schedule of five fields such as \"0 2 * * 1-5\" (minute, hour, day of month, month, day of week), or @daily";
            ("schedule", format!("`{}` is not {form}: {error}", window.schedule))
        })?;
        if cron.find_next_occurrence(&DateTime::<Utc>::UNIX_EPOCH, true).is_err() {
            let problem = format!("`{}` never matches, no year has such a day: correct day of month and month", window.schedule);
            return Err(("schedule", problem));
        }
        let every_hour = cron.pattern.hours.values().len() == 24;
        Ok(Self { cron, zone, length: TimeDelta::seconds(seconds), every_hour })
    }

    /// When the span under way ends; `None` when none is.
    fn end(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let end = self.latest_start(now)? + self.length;
        (now < end).then_some(end)
    }

    /// The last start that is not after this time.
    fn latest_start(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        if self.every_hour {
            return Some(self.cron.find_previous_occurrence(&now.with_timezone(&self.zone), true).ok()?.to_utc());
        }
        let wall = self.cron.find_previous_occurrence(&self.passed(now).and_utc(), true).ok()?;
        self.instant(wall.naive_utc())
    }

    /// The first start after this time.
    fn next_start(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        if self.every_hour {
            return Some(self.cron.find_next_occurrence(&now.with_timezone(&self.zone), false).ok()?.to_utc());
        }
        let wall = self.cron.find_next_occurrence(&self.passed(now).and_utc(), false).ok()?;
        self.instant(wall.naive_utc())
    }

    /// The last time of day whose instant has come: where clocks were put back the whole hour before it.
    fn passed(&self, now: DateTime<Utc>) -> NaiveDateTime {
        let second = |wall: &NaiveDateTime| match self.zone.from_local_datetime(wall) {
            MappedLocalTime::Ambiguous(_, second) => Some(second.to_utc()),
            MappedLocalTime::Single(_) | MappedLocalTime::None => None,
        };
        let mut wall = now.with_timezone(&self.zone).naive_local();
        if second(&wall) == Some(now) {
            while second(&(wall + MINUTE)).is_some() {
                wall += MINUTE;
            }
        }
        wall
    }

    /// The instant at which this time of day comes: the first of two, or the first after the gap that has swallowed it. No zone
    /// has left out more than a day.
    fn instant(&self, wall: NaiveDateTime) -> Option<DateTime<Utc>> {
        (0..=1440).find_map(|minutes| Some(self.zone.from_local_datetime(&(wall + MINUTE * minutes)).earliest()?.to_utc()))
    }
}
