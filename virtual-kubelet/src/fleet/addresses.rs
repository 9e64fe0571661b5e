//! Ranges of addresses; no I/O.

use std::collections::HashMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A range of IPv4 addresses, such as `10.64.0.0/10`.
///
/// ```
/// use virtual_kubelet::fleet::Cidr;
///
/// let range: Cidr = "10.64.0.0/30".parse().unwrap();
/// assert_eq!(range.to_string(), "10.64.0.0/30");
/// assert!("10.64.0.0".parse::<Cidr>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    first: u32,
    prefix: u32,
}

impl Cidr {
    /// `198.19.0.0/16`, of the addresses that are set aside for tests: no node's real one.
    pub(super) fn of_nodes() -> Self {
        Self { first: u32::from(Ipv4Addr::new(198, 19, 0, 0)), prefix: 16 }
    }

    /// `10.64.0.0/10`: four million pods.
    pub(super) fn of_pods() -> Self {
        Self { first: u32::from(Ipv4Addr::new(10, 64, 0, 0)), prefix: 10 }
    }

    /// How many addresses can be given away: all but the first and the last.
    pub(crate) fn capacity(self) -> u32 {
        u32::try_from((1u64 << (32 - self.prefix)).saturating_sub(2)).unwrap_or(u32::MAX)
    }

    fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address).checked_sub(self.first + 1).is_some_and(|index| index < self.capacity())
    }

    /// The address number `index`, from 0.
    pub(crate) fn nth(self, index: u32) -> Option<Ipv4Addr> {
        (index < self.capacity()).then(|| Ipv4Addr::from(self.first + 1 + index))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.first), self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("`{text}` is not a range of IPv4 addresses: write it like 10.64.0.0/10, with a prefix from 1 to 30");
        let (address, prefix) = text.split_once('/').ok_or_else(error)?;
        let address: Ipv4Addr = address.parse().map_err(|_| error())?;
        let prefix: u32 = prefix.parse().ok().filter(|prefix| (1..=30).contains(prefix)).ok_or_else(error)?;
        Ok(Self { first: u32::from(address) & (u32::MAX << (32 - prefix)), prefix })
    }
}

/// The addresses of a range that pods have.
#[derive(Debug)]
pub(crate) struct Pool {
    range: Cidr,
    /// Each with the number of pods that have it: one, unless an earlier process gave it away twice.
    taken: HashMap<u32, u32>,
}

impl Pool {
    pub fn new(range: Cidr) -> Self {
        Self { range, taken: HashMap::new() }
    }

    /// A free address, the same for the same `seed` where that is free; none when all are taken.
    pub fn take(&mut self, seed: u64) -> Option<Ipv4Addr> {
        let capacity = self.range.capacity();
        if self.taken.len() >= capacity as usize {
            return None;
        }
        let from = u32::try_from(seed % u64::from(capacity)).unwrap_or_default();
        let mut candidates = (from..capacity).chain(0..from).filter_map(|index| self.range.nth(index));
        let free = candidates.find(|address| !self.taken.contains_key(&u32::from(*address)))?;
        self.taken.insert(u32::from(free), 1);
        Some(free)
    }

    /// Notes that a pod has this address already. A pod keeps its address, also when another one has the same or when it is not of
    /// this range, which it takes nothing from then.
    pub fn adopt(&mut self, address: Ipv4Addr) {
        if self.range.contains(address) {
            *self.taken.entry(u32::from(address)).or_default() += 1;
        }
    }

    /// A pod that took or adopted this address has gone. The address is free once no pod has it.
    pub fn release(&mut self, address: Ipv4Addr) {
        let address = u32::from(address);
        if let Some(pods) = self.taken.get_mut(&address) {
            *pods -= 1;
            if *pods == 0 {
                self.taken.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_gives_each_address_once_until_all_are_taken() {
        let mut pool = Pool::new("10.0.0.0/29".parse().unwrap());
        let mut taken: Vec<_> = (0..6).map(|_| pool.take(4).unwrap()).collect();
        assert_eq!(pool.take(4), None);
        pool.release(taken[2]);
        assert_eq!(pool.take(0), Some(taken[2]));
        taken.sort();
        taken.dedup();
        assert_eq!((taken.len(), taken[0], taken[5]), (6, Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 6)));
    }

    #[test]
    fn an_adopted_address_is_not_given_to_another_pod() {
        let mut pool = Pool::new("10.0.0.0/30".parse().unwrap());
        pool.adopt(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(pool.take(0), Some(Ipv4Addr::new(10, 0, 0, 2)));
        assert_eq!(pool.take(0), None);
    }

    #[test]
    fn an_address_of_two_pods_is_free_after_both_leave() {
        let mut pool = Pool::new("10.0.0.0/30".parse().unwrap());
        let (twice, other) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        pool.adopt(twice);
        pool.adopt(twice);
        pool.release(twice);
        assert_eq!((pool.take(0), pool.take(0)), (Some(other), None));
        pool.release(twice);
        assert_eq!(pool.take(0), Some(twice));
    }

    #[test]
    fn an_address_of_another_range_takes_nothing_from_this_one() {
        let mut pool = Pool::new("10.0.0.0/30".parse().unwrap());
        for other in [Ipv4Addr::new(10, 0, 0, 0), Ipv4Addr::new(10, 0, 0, 3), Ipv4Addr::new(192, 168, 0, 1), Ipv4Addr::UNSPECIFIED] {
            pool.adopt(other);
        }
        assert!(pool.take(0).is_some() && pool.take(0).is_some() && pool.take(0).is_none());
        pool.release(Ipv4Addr::new(192, 168, 0, 1));
        assert_eq!(pool.take(0), None);
    }

    #[test]
    fn a_range_that_is_none_is_refused_with_an_example() {
        for wrong in ["", "10.0.0.0", "10.0.0.0/31", "10.0.0.0/0", "10.0.0/8", "::/64"] {
            assert!(wrong.parse::<Cidr>().unwrap_err().contains("10.64.0.0/10"), "{wrong}");
        }
        assert_eq!("10.1.2.3/8".parse::<Cidr>().unwrap().to_string(), "10.0.0.0/8");
    }
}
