//! The fencing token on a per-node Deployment.
//!
//! `<first 8 of the resource's UID>.<id>.<phase>.<unix seconds>[.k]`, in a label: annotations of a Deployment are copied
//! to its `ReplicaSet` and come back with `kubectl rollout undo`; labels do neither.

use crate::duration::UnixSeconds;
use std::{fmt, str::FromStr};

/// How far the holder of an id has come on one Deployment. Within one id phases only move forward, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// This Deployment was never complete; the node does not serve yet, and its template may change without a grant.
    New,
    /// The health check fails; the pods are untouched.
    Claimed,
    /// The Deployment is paused, and the images of its pods change in place. The health check fails.
    InPlace,
    /// Pods change while the node stays attached (degrade mode).
    Degrading,
    /// Pods change on a node that is detached.
    Updating,
    /// Nothing is going on; the node serves when its pods are ready.
    Closed,
}

impl Phase {
    const ALL: [Self; 6] = [Self::New, Self::Claimed, Self::InPlace, Self::Degrading, Self::Updating, Self::Closed];

    /// The phase of a word in a token.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == word)
    }

    /// The word in the token.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "New",
            Self::Claimed => "Claimed",
            Self::InPlace => "InPlace",
            Self::Degrading => "Degrading",
            Self::Updating => "Updating",
            Self::Closed => "Closed",
        }
    }
}

/// A fencing token: which grant changed a Deployment last, and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// First 8 characters of the UID of the `IngressDaemonSet`.
    pub uid8: String,
    /// Id of the grant, or of the creation; never used twice within one resource.
    pub id: u64,
    /// Phase that the holder of the id has reached.
    pub phase: Phase,
    /// When this phase began, seconds since 1970. A CLAIM that follows a holding token copies its time.
    pub since: UnixSeconds,
    /// The user's annotation stood on the Deployment before we claimed it: CLOSE leaves it there.
    pub keep_annotation: bool,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}.{}", self.uid8, self.id, self.phase.as_str(), self.since)?;
        if self.keep_annotation { f.write_str(".k") } else { Ok(()) }
    }
}

/// The label does not have the form of a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a token of the form <uid>.<id>.<phase>.<seconds>[.k]")]
pub struct ParseTokenError(pub String);

impl FromStr for Token {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.split('.');
            let uid8 = parts.next().filter(|part| !part.is_empty())?.to_owned();
            let id = parts.next()?.parse().ok()?;
            let phase = Phase::from_word(parts.next()?)?;
            let since = parts.next()?.parse().ok()?;
            let keep_annotation = match parts.next() {
                None => false,
                Some("k") => true,
                Some(_) => return None,
            };
            parts.next().is_none().then_some(Self { uid8, id, phase, since, keep_annotation })
        };
        parse().ok_or_else(|| ParseTokenError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_token_that_was_written_reads_back_as_itself(id: u64, since: UnixSeconds, phase in 0..6usize, keep_annotation: bool) {
            let token = Token { uid8: "0a1b2c3d".into(), id, phase: Phase::ALL[phase], since, keep_annotation };
            prop_assert_eq!(token.to_string().parse::<Token>(), Ok(token.clone()));
            prop_assert!(token.to_string().len() <= 63 || !(0..=99_999_999_999).contains(&since) || id > 9_999_999_999_999);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".*") {
            let _ = text.parse::<Token>();
        }
    }

    #[test]
    fn a_text_that_is_no_token_is_refused_whole() {
        for text in
            ["", ".5.Claimed.9", "u.x.Claimed.9", "u.5.Taken.9", "u.5.Claimed", "u.5.Claimed.x", "u.5.Claimed.9.x", "u.5.Claimed.9.k.k"]
        {
            assert_eq!(text.parse::<Token>(), Err(ParseTokenError(text.into())));
        }
        assert!("u.5.Claimed.9".parse::<Token>().is_ok_and(|token| !token.keep_annotation));
        assert!("u.5.Claimed.9.k".parse::<Token>().is_ok_and(|token| token.keep_annotation));
    }
}
