//! Who asks for the verdict, how often, and who has seen the node go away.

use hyper::StatusCode;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use std::{collections::HashMap, net::IpAddr};

/// Clients remembered; the one that has been silent longest is forgotten first.
pub const MOST: usize = 64;

/// One client.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Prober {
    /// Its address.
    pub address: IpAddr,
    /// Answers given to it.
    pub probes: u64,
    /// Seconds between its probes, on average; `None` before the second.
    pub interval_seconds: Option<f64>,
    /// First answer.
    pub first_at: Timestamp,
    /// Last answer.
    pub last_at: Timestamp,
    /// Code of the last answer.
    pub last_code: u16,
    /// First 503 since the last 200, or of the last such series.
    pub first503_at: Option<Timestamp>,
    /// Last 503.
    pub last503_at: Option<Timestamp>,
    /// Number of 503 in that series.
    pub consecutive503: u64,
}

impl Prober {
    fn new(address: IpAddr, now: Timestamp) -> Self {
        Self {
            address,
            probes: 0,
            interval_seconds: None,
            first_at: now,
            last_at: now,
            last_code: 0,
            first503_at: None,
            last503_at: None,
            consecutive503: 0,
        }
    }

    fn note(&mut self, code: u16, now: Timestamp) {
        self.probes = self.probes.saturating_add(1);
        if code == 503 {
            if self.last_code != 503 {
                self.first503_at = Some(now);
                self.consecutive503 = 0;
            }
            self.last503_at = Some(now);
            self.consecutive503 = self.consecutive503.saturating_add(1);
        }
        self.last_at = now;
        self.last_code = code;
    }
}

/// The clients, at most [`MOST`].
#[derive(Debug, Default)]
pub struct Probers {
    by_address: Mutex<HashMap<IpAddr, Prober>>,
}

impl Probers {
    /// An answer was given.
    pub fn served(&self, to: IpAddr, code: StatusCode) {
        self.note(to, code.as_u16(), Timestamp::now());
    }

    fn note(&self, to: IpAddr, code: u16, now: Timestamp) {
        let mut probers = self.by_address.lock();
        if let Some(prober) = probers.get_mut(&to) {
            prober.note(code, now);
            return;
        }
        if probers.len() >= MOST {
            let silent = probers.values().min_by_key(|prober| prober.last_at).map(|prober| prober.address);
            silent.map(|address| probers.remove(&address));
        }
        probers.entry(to).or_insert_with(|| Prober::new(to, now)).note(code, now);
    }

    /// All of them, those heard of last first.
    pub fn snapshot(&self) -> Vec<Prober> {
        let mut probers: Vec<_> = self.by_address.lock().values().cloned().collect();
        probers.sort_by(|one, other| other.last_at.cmp(&one.last_at).then(one.address.cmp(&other.address)));
        for prober in &mut probers {
            let seconds = prober.last_at.duration_since(prober.first_at).as_secs_f64();
            // Precise enough: counts of probes stay far below 2^52.
            #[allow(clippy::cast_precision_loss)]
            let between = prober.probes.saturating_sub(1) as f64;
            prober.interval_seconds = (prober.probes > 1).then(|| (seconds / between * 1000.0).round() / 1000.0);
        }
        probers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).expect("in range")
    }

    #[test]
    fn a_series_of_503_is_counted_from_the_last_200() {
        let probers = Probers::default();
        for (second, code) in [(0, 503), (10, 200), (20, 503), (30, 503)] {
            probers.note(Ipv4Addr::LOCALHOST.into(), code, at(second));
        }
        let prober = &probers.snapshot()[0];
        assert_eq!((prober.first503_at, prober.last503_at, prober.consecutive503), (Some(at(20)), Some(at(30)), 2));
        assert_eq!((prober.probes, prober.interval_seconds), (4, Some(10.0)));
    }

    #[test]
    fn the_silent_are_forgotten_first_beyond_64_clients() {
        let probers = Probers::default();
        let client = |number: u32| IpAddr::from(Ipv4Addr::from_bits(number));
        for number in 0..1000 {
            probers.note(client(number), 200, at(number.into()));
            probers.note(client(0), 200, at(number.into()));
        }
        let known = probers.snapshot();
        assert_eq!(known.len(), MOST);
        assert!(known.iter().any(|prober| prober.address == client(0)));
        assert!(known.iter().all(|prober| prober.address == client(0) || prober.address > client(1000 - 64)));
    }
}
