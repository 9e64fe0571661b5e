//! Texts that people and other programs leave in labels and annotations.

use crds::{holders, token::Token};
use health_checker::watched_objects;

/// What parses is written as it was read.
pub fn run(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data) {
        if let Ok(token) = text.parse::<Token>() {
            assert_eq!(token.to_string().parse(), Ok(token));
        }
        if let Ok(held) = holders::parse(Some(text)) {
            let written = serde_json::to_string(&held).expect("plain data");
            assert_eq!(holders::parse(Some(&written)).expect("was written so"), held);
        }
    }
    // Objects as a health checker's watch delivers them.
    let _ = serde_json::from_slice::<watched_objects::Deployment>(data);
    let _ = serde_json::from_slice::<watched_objects::Node>(data);
    let _ = serde_json::from_slice::<watched_objects::Pod>(data);
    let _ = serde_json::from_slice::<watched_objects::List<watched_objects::Pod>>(data);
}
