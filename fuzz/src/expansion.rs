//! `$(NAME)` in commands, arguments and variables of containers, and the paths of fields.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};
use virtual_kubelet::pod::{
    environment::{NodeFacts, expand, field_value, resolve},
    references::References,
};

/// The grammar of Kubernetes byte by byte, as its own implementation reads it: the judge of ours, which searches.
fn judge(text: &[u8], lookup: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut result = Vec::new();
    let mut at = 0;
    while at < text.len() {
        if text[at] != b'$' || at + 1 == text.len() {
            result.push(text[at]);
            at += 1;
            continue;
        }
        match text[at + 1] {
            b'$' => {
                result.push(b'$');
                at += 2;
            }
            b'(' => {
                if let Some(length) = text[at + 2..].iter().position(|byte| *byte == b')') {
                    let name = &text[at + 2..at + 2 + length];
                    match lookup(name) {
                        Some(value) => result.extend(value),
                        None => result.extend(&text[at..=at + 2 + length]),
                    }
                    at += length + 3;
                } else {
                    result.extend(b"$(");
                    at += 2;
                }
            }
            other => {
                result.extend([b'$', other]);
                at += 2;
            }
        }
    }
    result
}

/// The values of which names are made: short ones are met by chance.
fn value(name: &[u8]) -> Option<Vec<u8>> {
    match name.len() {
        0 | 1 => Some([b"<", name, b">"].concat()),
        2 => Some(b"$(A)".to_vec()),
        _ => None,
    }
}

/// What is expanded is what Kubernetes would make of it, and nothing that a pod can say stops the resolution of an
/// environment but an error.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let of_text = |name: &str| value(name.as_bytes()).map(|value| String::from_utf8(value).expect("made of a text and of ASCII"));
    assert_eq!(expand(&text, of_text).as_bytes(), judge(text.as_bytes(), value), "{text:?}");
    let _ = field_value(&Pod::default(), "198.18.0.1", &text);
    // A whole container, where the bytes are one, and one whose variables are lines of the text.
    let facts = NodeFacts { address: "198.18.0.1".into(), cpu: "8".into(), memory: "16Gi".into() };
    let containers = [serde_json::from_slice(data).unwrap_or_default(), lines(&text)];
    for container in containers {
        let _ = resolve(&container, &Pod::default(), &facts, &References::default(), &BTreeMap::new());
    }
}

fn lines(text: &str) -> Container {
    let variable = |line: &str| {
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
    };
    Container { env: Some(text.lines().map(variable).collect()), ..Container::default() }
}
