//! When nodes may be started: zones, changes of clocks, overlaps, and what cannot be read.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use chrono::{DateTime, Datelike as _, NaiveDateTime, TimeDelta, TimeZone as _, Timelike as _, Utc};
use chrono_tz::Tz;
use crds::ingress_daemon_set::Window;
use proptest::prelude::*;
use rollout_windows::{Opening, Windows};
use std::collections::{BTreeMap, BTreeSet};

fn allow(schedule: &str, duration: &str, zone: &str) -> Window {
    Window { schedule: schedule.to_owned(), duration: duration.into(), time_zone: zone.to_owned(), deny: false }
}

fn deny(schedule: &str, duration: &str, zone: &str) -> Window {
    Window { deny: true, ..allow(schedule, duration, zone) }
}

fn time(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

/// At each of these times it is about to open or close, as the sign says.
fn turns(windows: &[Window], turns: &[(&str, bool)]) {
    let parsed = Windows::parse(windows).unwrap();
    for (text, open) in turns {
        let second = TimeDelta::seconds(1);
        assert_eq!(parsed.at(time(text) - second), Opening { open: !open, changes_at: Some(time(text)) }, "a second before {text}");
        assert_eq!(parsed.at(time(text)).open, *open, "at {text}");
    }
    for pair in turns.windows(2) {
        assert_eq!(parsed.at(time(pair[0].0)).changes_at, Some(time(pair[1].0)), "after {}", pair[0].0);
    }
}

fn refused(window: Window) -> String {
    Windows::parse(&[allow("@daily", "1h", "UTC"), window]).unwrap_err()
}

#[test]
fn without_windows_it_is_always_open() {
    assert_eq!(Windows::parse(&[]).unwrap().at(time("2026-01-01T00:00:00Z")), Opening { open: true, changes_at: None });
}

#[test]
fn a_window_follows_its_days_time_zone_and_duration() {
    let nights = [allow("0 2 * * MON-FRI", "3h", "Europe/Berlin")];
    turns(&nights, &[("2026-06-05T00:00:00Z", true), ("2026-06-05T03:00:00Z", false), ("2026-06-08T00:00:00Z", true)]);
    turns(&nights, &[("2026-12-04T01:00:00Z", true), ("2026-12-04T04:00:00Z", false), ("2026-12-07T01:00:00Z", true)]);
    turns(&[allow("0 2 * JUN *", "30m", "Asia/Kolkata")], &[("2026-05-31T20:30:00Z", true), ("2026-05-31T21:00:00Z", false)]);
    turns(
        &[allow("@weekly", "90m", "UTC")],
        &[("2026-11-22T00:00:00Z", true), ("2026-11-22T01:30:00Z", false), ("2026-11-29T00:00:00Z", true)],
    );
    turns(
        &[allow("0 12 13 * 5", "1h", "UTC")],
        &[("2026-03-06T12:00:00Z", true), ("2026-03-06T13:00:00Z", false), ("2026-03-13T12:00:00Z", true)],
    );
}

#[test]
fn windows_cross_midnight_and_last_for_days() {
    turns(&[allow("0 22 * * 0", "4h", "UTC")], &[("2026-11-22T22:00:00Z", true), ("2026-11-23T02:00:00Z", false)]);
    turns(&[allow("0 18 * * 5", "63h", "Europe/Berlin")], &[("2026-11-20T17:00:00Z", true), ("2026-11-23T08:00:00Z", false)]);
    let most = [allow("0 0 1 2 *", "744h", "UTC")];
    turns(&most, &[("2026-02-01T00:00:00Z", true), ("2026-03-04T00:00:00Z", false), ("2027-02-01T00:00:00Z", true)]);
}

#[test]
fn a_start_within_a_clock_gap_comes_right_after_it() {
    turns(&[allow("30 2 * * *", "1h", "Europe/Berlin")], &[("2026-03-29T01:00:00Z", true), ("2026-03-29T02:00:00Z", false)]);
    turns(&[allow("30 2,14 * * *", "1h", "Europe/Berlin")], &[("2026-03-29T01:00:00Z", true), ("2026-03-29T02:00:00Z", false)]);
    turns(&[allow("15 2 * * *", "1h", "America/New_York")], &[("2026-03-08T07:00:00Z", true), ("2026-03-08T08:00:00Z", false)]);
    turns(&[allow("15 2 * * *", "1h", "Australia/Lord_Howe")], &[("2026-10-03T15:30:00Z", true), ("2026-10-03T16:30:00Z", false)]);
}

#[test]
fn a_start_at_a_repeated_local_time_comes_once() {
    let berlin = [allow("30 2 * * *", "20m", "Europe/Berlin")];
    turns(&berlin, &[("2026-10-25T00:30:00Z", true), ("2026-10-25T00:50:00Z", false), ("2026-10-26T01:30:00Z", true)]);
    let several = [allow("0,30 1-2 * * *", "20m", "America/New_York")];
    turns(&several, &[("2026-11-01T05:30:00Z", true), ("2026-11-01T05:50:00Z", false), ("2026-11-01T07:00:00Z", true)]);
    let half = [allow("45 1 * * *", "15m", "Australia/Lord_Howe")];
    turns(&half, &[("2026-04-04T14:45:00Z", true), ("2026-04-04T15:00:00Z", false), ("2026-04-05T15:15:00Z", true)]);
}

#[test]
fn a_window_keeps_its_length_when_clocks_change() {
    turns(&[allow("0 1 * * *", "4h", "Europe/Berlin")], &[("2026-03-29T00:00:00Z", true), ("2026-03-29T04:00:00Z", false)]);
    turns(&[allow("0 1 * * *", "4h", "Europe/Berlin")], &[("2026-10-24T23:00:00Z", true), ("2026-10-25T03:00:00Z", false)]);
}

#[test]
fn an_hourly_schedule_starts_in_both_repeated_hours() {
    let hourly = Windows::parse(&[allow("@hourly", "1h", "Europe/Berlin")]).unwrap();
    for text in ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z", "2026-03-29T01:30:00Z"] {
        assert_eq!(hourly.at(time(text)), Opening { open: true, changes_at: None }, "{text}");
    }
}

#[test]
fn windows_that_overlap_or_touch_are_one() {
    let touching = [allow("0 2 * * *", "1h", "UTC"), allow("0 3 * * *", "1h", "UTC"), allow("30 3 * * *", "2h", "UTC")];
    turns(&touching, &[("2026-05-01T02:00:00Z", true), ("2026-05-01T05:30:00Z", false), ("2026-05-02T02:00:00Z", true)]);
    turns(&[allow("*/10 8-9 * * *", "15m", "UTC")], &[("2026-05-01T08:00:00Z", true), ("2026-05-01T10:05:00Z", false)]);
    let always = Windows::parse(&[allow("@daily", "30h", "UTC")]).unwrap().at(time("2026-05-01T04:00:00Z"));
    assert_eq!(always, Opening { open: true, changes_at: None });
}

#[test]
fn what_denies_beats_what_allows() {
    let lunch = [allow("0 8 * * *", "10h", "UTC"), deny("0 12 * * *", "1h", "UTC")];
    let day =
        [("2026-05-01T08:00:00Z", true), ("2026-05-01T12:00:00Z", false), ("2026-05-01T13:00:00Z", true), ("2026-05-01T18:00:00Z", false)];
    turns(&lunch, &day);
    let covered = [allow("0 8 * * *", "1h", "UTC"), deny("0 7 * * 1-6", "3h", "UTC")];
    turns(&covered, &[("2026-05-03T08:00:00Z", true), ("2026-05-03T09:00:00Z", false), ("2026-05-10T08:00:00Z", true)]);
    let never = Windows::parse(&[allow("0 8 * * *", "1h", "UTC"), deny("0 7 * * *", "24h", "UTC")]).unwrap();
    assert_eq!(never.at(time("2026-05-01T08:30:00Z")), Opening { open: false, changes_at: None });
}

#[test]
fn windows_that_only_deny_leave_all_other_time_open() {
    let freeze = [deny("0 0 20 12 *", "336h", "Europe/Berlin")];
    turns(&freeze, &[("2026-12-19T23:00:00Z", false), ("2027-01-02T23:00:00Z", true), ("2027-12-19T23:00:00Z", false)]);
}

#[test]
fn a_leap_day_is_found_only_within_a_year() {
    let leap = Windows::parse(&[allow("0 0 29 2 *", "24h", "UTC")]).unwrap();
    let opens = Some(time("2028-02-29T00:00:00Z"));
    assert_eq!(leap.at(time("2027-02-28T12:00:00Z")), Opening { open: false, changes_at: opens });
    assert_eq!(leap.at(time("2028-02-29T05:00:00Z")), Opening { open: true, changes_at: Some(time("2028-03-01T00:00:00Z")) });
    assert_eq!(leap.at(time("2026-02-28T12:00:00Z")), Opening { open: false, changes_at: None });
}

#[test]
fn fractions_of_a_second_change_nothing() {
    let parsed = Windows::parse(&[allow("0 2 * * *", "1h", "UTC")]).unwrap();
    assert!(!parsed.at(time("2026-05-01T01:59:59.999Z")).open);
    assert!(parsed.at(time("2026-05-01T02:00:00.001Z")).open && parsed.at(time("2026-05-01T02:59:59.999Z")).open);
}

#[test]
fn an_unreadable_window_field_is_named_with_a_remedy() {
    for (window, start, remedy) in [
        (allow("61 2 * * *", "1h", "UTC"), "windows[1].schedule: `61 2 * * *` is not a schedule of five fields", "\"0 2 * * 1-5\""),
        (allow("0 0 2 * * *", "1h", "UTC"), "windows[1].schedule: `0 0 2 * * *` is not", "five fields"),
        (allow("@reboot", "1h", "UTC"), "windows[1].schedule: `@reboot` is not", "@daily"),
        (allow("", "1h", "UTC"), "windows[1].schedule: `` is not", "five fields"),
        (allow("TZ=UTC 0 2 * * *", "1h", "UTC"), "windows[1].schedule: `TZ=UTC 0 2 * * *` is not", "five fields"),
        (allow("0 2 30 2 *", "1h", "UTC"), "windows[1].schedule: `0 2 30 2 *` never matches", "correct day of month and month"),
        (allow("0 2 * * *", "1h", "Berlin"), "windows[1].timeZone: `Berlin` is not", "Europe/Berlin"),
        (allow("0 2 * * *", "1h", ""), "windows[1].timeZone: `` is not", "UTC"),
        (allow("0 2 * * *", "59s", "UTC"), "windows[1].duration: `59s` is not a duration from 1m", "1h30m"),
        (allow("0 2 * * *", "745h", "UTC"), "windows[1].duration: `745h` is not", "744h"),
        (deny("0 2 * * *", "3 hours", "UTC"), "windows[1].duration: `3 hours` is not", "3h"),
    ] {
        let said = refused(window);
        assert!(said.starts_with(start) && said.contains(remedy), "{said}");
    }
}

/// A schedule that is easy to evaluate by hand.
#[derive(Clone, Debug)]
struct Simple {
    minutes: BTreeSet<u32>,
    hours: BTreeSet<u32>,
    weekdays: BTreeSet<u32>,
    minutes_long: i64,
    zone: Tz,
    deny: bool,
}

impl Simple {
    fn window(&self) -> Window {
        let list = |numbers: &BTreeSet<u32>| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let schedule = format!("{} {} * * {}", list(&self.minutes), list(&self.hours), list(&self.weekdays));
        Window {
            schedule,
            duration: format!("{}m", self.minutes_long).as_str().into(),
            time_zone: self.zone.name().to_owned(),
            deny: self.deny,
        }
    }

    fn matches(&self, wall: NaiveDateTime) -> bool {
        self.minutes.contains(&wall.minute())
            && self.hours.contains(&wall.hour())
            && self.weekdays.contains(&wall.weekday().num_days_from_sunday())
    }

    /// Minutes in which it is under way: a start comes when the local time first is, or has passed, its time.
    fn under_way(&self, from: DateTime<Utc>, minutes: i64) -> Vec<bool> {
        let wall = |minute: i64| (from + TimeDelta::minutes(minute)).with_timezone(&self.zone).naive_local();
        let mut latest = wall(-1);
        let mut until = -1;
        let mut found = Vec::new();
        for minute in 0..minutes {
            let now = wall(minute);
            let mut starts = self.hours.len() == 24 && self.matches(now);
            while latest < now {
                latest += TimeDelta::minutes(1);
                starts |= self.hours.len() < 24 && self.matches(latest);
            }
            if starts {
                until = minute + self.minutes_long;
            }
            found.push(minute < until);
        }
        found
    }
}

fn zones() -> impl Strategy<Value = Tz> {
    let names = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"];
    prop::sample::select(names.map(|name| name.parse::<Tz>().unwrap()).to_vec())
}

fn simple() -> impl Strategy<Value = Simple> {
    let numbers = |below: u32, most: usize| prop::collection::btree_set(0..below, 1..=most);
    let hours = prop_oneof![8 => numbers(4, 3), 4 => numbers(24, 4), 1 => Just((0..24).collect::<BTreeSet<u32>>())];
    let lengths = prop_oneof![1..90_i64, 1..4320_i64];
    (numbers(60, 3), hours, numbers(7, 7), lengths, zones(), prop::bool::weighted(0.3))
        .prop_map(|(minutes, hours, weekdays, minutes_long, zone, deny)| Simple { minutes, hours, weekdays, minutes_long, zone, deny })
}

/// Days on which clocks change in one of the zones, and any others.
fn days() -> impl Strategy<Value = DateTime<Utc>> {
    let changes = ["2026-03-08", "2026-03-29", "2026-04-04", "2026-10-03", "2026-10-25", "2026-11-01", "2028-02-29"];
    let changes = changes.map(|day| time(&format!("{day}T00:00:00Z"))).to_vec();
    prop_oneof![prop::sample::select(changes), (0..3000_i64).prop_map(|day| Utc.timestamp_opt(1_700_006_400 + day * 86_400, 0).unwrap())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_answer_is_that_of_counting_every_minute(windows in prop::collection::vec(simple(), 1..4), day in days()) {
        const BEFORE: i64 = 4 * 1440;
        const LOOKED: i64 = 2 * 1440;
        let from = day - TimeDelta::minutes(BEFORE);
        let by_hand: Vec<_> = windows.iter().map(|window| (window.deny, window.under_way(from, BEFORE + LOOKED))).collect();
        let any_allows = by_hand.iter().any(|(deny, _)| !deny);
        let is_open = |minute: i64| {
            let within = |(_, minutes): &&(bool, Vec<bool>)| minutes[usize::try_from(minute).unwrap()];
            !by_hand.iter().filter(|(deny, _)| *deny).any(|window| within(&window))
                && (!any_allows || by_hand.iter().filter(|(deny, _)| !deny).any(|window| within(&window)))
        };
        let written: Vec<_> = windows.iter().map(Simple::window).collect();
        let parsed = Windows::parse(&written).unwrap();
        // The next minute at which the answer by hand is another one.
        let mut changes = BTreeMap::new();
        for minute in (BEFORE..BEFORE + LOOKED - 1).rev() {
            let next = if is_open(minute) == is_open(minute + 1) { changes.get(&(minute + 1)).copied() } else { Some(minute + 1) };
            if let Some(next) = next {
                changes.insert(minute, next);
            }
        }
        for minute in (BEFORE..BEFORE + LOOKED - 1).step_by(37) {
            let at = from + TimeDelta::minutes(minute);
            let answer = parsed.at(at);
            prop_assert_eq!(answer.open, is_open(minute), "{} {:?}", at, &written);
            match (changes.get(&minute), answer.changes_at) {
                (Some(next), found) => prop_assert_eq!(found, Some(from + TimeDelta::minutes(*next)), "{} {:?}", at, &written),
                (None, found) => prop_assert!(found.is_none_or(|found| found >= from + TimeDelta::minutes(BEFORE + LOOKED - 1)), "{} {:?}", at, &written),
            }
            if let Some(change) = answer.changes_at {
                prop_assert_ne!(parsed.at(change).open, answer.open, "{} {:?}", at, &written);
                prop_assert_eq!(parsed.at(change - TimeDelta::seconds(1)).open, answer.open, "{} {:?}", at, &written);
            }
        }
    }
}
