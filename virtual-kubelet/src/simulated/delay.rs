//! How long a stage takes; no I/O.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;
use serde::Deserialize;

/// An exponential delay is cut at so many times its mean, so that no pod waits without end.
const LONGEST_IN_MEANS: f64 = 10.0;
/// Longest delay that may be asked for.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// How long a stage of a pod takes.
///
/// ```
/// use std::time::Duration;
/// use virtual_kubelet::simulated::Delay;
///
/// let delay: Delay = "uniform 1s 5s".parse().unwrap();
/// let sample = delay.sample(&mut fastrand::Rng::with_seed(7));
/// assert!((Duration::from_secs(1)..=Duration::from_secs(5)).contains(&sample));
/// assert!("uniform 5s".parse::<Delay>().unwrap_err().to_string().contains("uniform MIN MAX"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub enum Delay {
    /// Always the same.
    Fixed(Duration),
    /// Anything between the two.
    Uniform(Duration, Duration),
    /// Of this mean, most of them shorter.
    Exponential(Duration),
}

impl Default for Delay {
    fn default() -> Self {
        Self::Fixed(Duration::ZERO)
    }
}

/// A delay that cannot be read.
///
/// ```
/// use virtual_kubelet::simulated::{Delay, DelayError};
///
/// let error: DelayError = "soon".parse::<Delay>().unwrap_err();
/// assert!(error.to_string().starts_with("`soon` is not a delay"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a delay: {why}; write a duration (250ms, 1.5s, 2m), `uniform MIN MAX` or `exponential MEAN`")]
pub struct DelayError {
    text: String,
    why: String,
}

impl Delay {
    /// One delay.
    pub fn sample(&self, random: &mut Rng) -> Duration {
        match *self {
            Self::Fixed(delay) => delay,
            Self::Uniform(least, most) => least + most.saturating_sub(least).mul_f64(random.f64()),
            // 1 - x is never zero, of which there is no logarithm.
            Self::Exponential(mean) => mean.mul_f64((-(1.0 - random.f64()).ln()).min(LONGEST_IN_MEANS)),
        }
    }
}

/// A duration as people write it. A bare `0` has no unit to be in doubt about.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let read: jiff::SignedDuration = text.parse().map_err(|_| format!("`{text}` is not a duration"))?;
    let duration = Duration::try_from(read).map_err(|_| format!("`{text}` is negative"))?;
    if duration > LONGEST {
        return Err(format!("`{text}` is longer than a year"));
    }
    Ok(duration)
}

impl FromStr for Delay {
    type Err = DelayError;

    fn from_str(text: &str) -> Result<Self, DelayError> {
        let error = |why: String| DelayError { text: text.to_owned(), why };
        let words: Vec<&str> = text.split_whitespace().collect();
        let read = |word: &str| duration(word).map_err(error);
        match *words.as_slice() {
            ["uniform", least, most] => {
                let (least, most) = (read(least)?, read(most)?);
                if least > most {
                    return Err(error("its minimum is greater than its maximum".into()));
                }
                Ok(Self::Uniform(least, most))
            }
            ["uniform", ..] => Err(error("write it as `uniform MIN MAX`".into())),
            ["exponential", mean] => Ok(Self::Exponential(read(mean)?)),
            ["exponential", ..] => Err(error("write it as `exponential MEAN`".into())),
            ["fixed", delay] | [delay] => Ok(Self::Fixed(read(delay)?)),
            _ => Err(error("it has the wrong number of words".into())),
        }
    }
}

impl TryFrom<String> for Delay {
    type Error = DelayError;

    fn try_from(text: String) -> Result<Self, DelayError> {
        text.parse()
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(delay) => write!(f, "{delay:?}"),
            Self::Uniform(least, most) => write!(f, "uniform {least:?} {most:?}"),
            Self::Exponential(mean) => write!(f, "exponential {mean:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_malformed_delay_is_an_error_naming_the_valid_forms() {
        assert_eq!("0".parse(), Ok(Delay::Fixed(Duration::ZERO)));
        assert_eq!("1.5s".parse(), Ok(Delay::Fixed(SECOND * 3 / 2)));
        assert_eq!("fixed 2m".parse(), Ok(Delay::Fixed(SECOND * 120)));
        assert_eq!(" uniform  250ms 1s".parse(), Ok(Delay::Uniform(SECOND / 4, SECOND)));
        assert_eq!("exponential 3s".parse(), Ok(Delay::Exponential(SECOND * 3)));
        for wrong in ["", "5", "soon", "-1s", "uniform 2s 1s", "uniform 1s", "exponential", "normal 1s 2s", "99999999h", "1s 2s"] {
            let error = wrong.parse::<Delay>().unwrap_err().to_string();
            assert!(error.contains("uniform MIN MAX") && error.contains("exponential MEAN"), "{error}");
        }
    }

    #[test]
    fn sampled_delays_stay_within_bounds_and_meet_their_mean() {
        let mut random = Rng::with_seed(1);
        let mean = |delay: Delay, random: &mut Rng| (0..10_000).map(|_| delay.sample(random).as_secs_f64()).sum::<f64>() / 10_000.0;
        assert!((mean(Delay::Uniform(SECOND, SECOND * 3), &mut random) - 2.0).abs() < 0.05);
        assert!((mean(Delay::Exponential(SECOND * 2), &mut random) - 2.0).abs() < 0.1);
        assert!((0..10_000).all(|_| Delay::Exponential(SECOND).sample(&mut random) <= SECOND * 10));
    }

    #[test]
    fn the_same_seed_gives_the_same_samples() {
        let sample = || Delay::Exponential(SECOND).sample(&mut Rng::with_seed(42));
        assert_eq!(sample(), sample());
    }
}
