//! Lengths of time, as Go and Kubernetes write them, and points in time.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Point in time: seconds since 1970-01-01T00:00:00Z, by the clock of whoever wrote it. Lengths of time are plain numbers.
pub type UnixSeconds = i64;

/// Duration such as `2s`, `500ms` or `1h30m`: whole or decimal numbers, each with a unit (h, m, s, ms), the largest unit first.
/// Each field has its own bounds: see `schema::duration_schema` and `schema::window_duration_schema`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Duration(String);

impl Duration {
    /// Length in milliseconds. `None` if the text is not a duration, or too long for an `i64`.
    pub fn milliseconds(&self) -> Option<i64> {
        // The parser knows more than Go: signs, words, ISO 8601.
        let plain = self.0.bytes().all(|byte| byte.is_ascii_digit() || b".hms".contains(&byte));
        let span: jiff::SignedDuration = self.0.parse().ok().filter(|_| plain)?;
        i64::try_from(span.as_millis()).ok()
    }
}

impl From<&str> for Duration {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_only_in_the_notation_of_go() {
        for (text, wanted) in [
            ("2s", Some(2_000)),
            ("500ms", Some(500)),
            ("1m30s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("0s", Some(0)),
            ("744h", Some(2_678_400_000)),
            ("1h30m", Some(5_400_000)),
            ("", None),
            ("2", None),
            ("s", None),
            ("-2s", None),
            ("2 s", None),
            ("PT2H", None),
            ("2 hours", None),
            ("1d", None),
            ("3µs", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(Duration::from(text).milliseconds(), wanted, "{text}");
        }
    }
}
