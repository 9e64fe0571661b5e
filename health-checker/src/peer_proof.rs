//! What tells a health checker of the same resource on the same node from everything else that reaches the door: a key that
//! the pods of the resource's health checkers have, mounted from a Secret.
//!
//! Nobody sends the key. Each side sends a code over what both know of their one connection. That is the newcomer's name in the
//! node's network namespace, which one socket has at a time, the holder's challenge, made when that name was known, node
//! and port. Who stands between the two has a connection of its own to each of them, so that what it passes on is false.

use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use serde::Serialize;
use std::{fmt, io, path::Path};

/// Bytes; fewer could be guessed.
const SHORTEST_KEY: usize = 16;

/// Who proves that it belongs here.
#[derive(Clone, Copy, Debug, Serialize)]
pub enum Side {
    /// Who asks for the port.
    Newcomer,
    /// Who has it.
    Holder,
}

/// One attempt to hand over.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Exchange<'a> {
    /// Abstract address of the newcomer's end of the connection, as the kernel says.
    pub newcomer: &'a [u8],
    /// What the holder made up for it.
    pub challenge: &'a [u8],
    /// Name of the node: on another one somebody else may have the newcomer's name.
    pub node: &'a str,
    /// The port.
    pub port: u16,
}

/// The key of a resource's health checkers.
pub struct PeerKey(hmac::Key);

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerKey")
    }
}

impl PeerKey {
    /// Reads it anew: the kubelet changes the file when the Secret changes.
    ///
    /// # Errors
    /// The file cannot be read, or holds too little to be a key.
    pub fn read(path: &Path) -> io::Result<Self> {
        let wrong = |error| io::Error::new(io::Error::kind(&error), format!("{}: {error}", path.display()));
        let bytes = std::fs::read(path).map_err(wrong)?;
        if bytes.len() < SHORTEST_KEY {
            return Err(wrong(io::Error::new(io::ErrorKind::InvalidData, format!("the key has fewer than {SHORTEST_KEY} bytes"))));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The proof of a side.
    pub fn prove(&self, side: Side, exchange: &Exchange<'_>) -> Vec<u8> {
        hmac::sign(&self.0, &said(side, exchange)).as_ref().to_vec()
    }

    /// The side has the same key, and spoke of this exchange.
    pub fn is_proved(&self, side: Side, exchange: &Exchange<'_>, proof: &[u8]) -> bool {
        hmac::verify(&self.0, &said(side, exchange), proof).is_ok()
    }
}

/// JSON, in which no two exchanges look alike.
fn said(side: Side, exchange: &Exchange<'_>) -> Vec<u8> {
    serde_json::to_vec(&(side, exchange)).unwrap_or_default()
}

/// Bytes that nobody can foretell.
///
/// # Errors
/// The system has none.
pub fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("no random bytes"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> PeerKey {
        PeerKey(hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()))
    }

    #[test]
    fn a_proof_holds_only_for_its_side_and_exchange() {
        let exchange = Exchange { newcomer: b"a", challenge: b"c", node: "n1", port: 80 };
        let proof = key("k").prove(Side::Newcomer, &exchange);
        assert!(key("k").is_proved(Side::Newcomer, &exchange, &proof));
        assert!(!key("k").is_proved(Side::Holder, &exchange, &proof), "what one side says is no answer of the other");
        assert!(!key("x").is_proved(Side::Newcomer, &exchange, &proof));
        for other in [
            Exchange { newcomer: b"b", ..exchange },
            Exchange { challenge: b"d", ..exchange },
            Exchange { node: "n2", ..exchange },
            Exchange { port: 81, ..exchange },
            Exchange { newcomer: b"ac", challenge: b"", ..exchange },
        ] {
            assert!(!key("k").is_proved(Side::Newcomer, &other, &proof), "{other:?}");
        }
    }

    #[test]
    fn missing_or_short_keys_are_refused_with_a_reason() {
        let path = std::env::temp_dir().join(format!("health-checker-key-{}", std::process::id()));
        assert!(PeerKey::read(&path).is_err_and(|error| error.to_string().contains("health-checker-key-")));
        std::fs::write(&path, "short").expect("writes");
        assert!(PeerKey::read(&path).is_err_and(|error| error.to_string().contains("16 bytes")));
        std::fs::write(&path, [7; SHORTEST_KEY]).expect("writes");
        assert!(PeerKey::read(&path).is_ok());
        std::fs::remove_file(path).expect("removes");
    }
}
