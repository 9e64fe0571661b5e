//! The protocols that carry several streams in the messages of one WebSocket: `channel.k8s.io` and its relatives; no I/O.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};

use super::handlers::{HandlerError, TerminalSize};

/// Standard input.
pub const STDIN: u8 = 0;
/// Standard output.
pub const STDOUT: u8 = 1;
/// Standard error.
pub const STDERR: u8 = 2;
/// How it ended.
pub const ERROR: u8 = 3;
/// Sizes of the terminal.
pub const RESIZE: u8 = 4;
/// From v5 on: the channel named by the next byte has ended.
const CLOSE: u8 = 255;

/// A protocol of this family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// Name in the handshake.
    pub name: &'static str,
    /// Messages are text: the channel's digit, then base64.
    pub base64: bool,
    /// Ends are told as a `Status`, and sizes are taken.
    pub status: bool,
    /// One channel can be ended before the others.
    pub close: bool,
}

/// All of them, best first.
pub const PROTOCOLS: [Protocol; 5] = [
    Protocol { name: "v5.channel.k8s.io", base64: false, status: true, close: true },
    Protocol { name: "v4.channel.k8s.io", base64: false, status: true, close: false },
    Protocol { name: "v4.base64.channel.k8s.io", base64: true, status: true, close: false },
    Protocol { name: "base64.channel.k8s.io", base64: true, status: false, close: false },
    Protocol { name: "channel.k8s.io", base64: false, status: false, close: false },
];

/// What a client that names no protocol speaks.
pub const UNNAMED: Protocol = Protocol { name: "", base64: false, status: false, close: false };

/// The first of ours that the client offers, or, when it offers none, [`UNNAMED`].
pub fn negotiate<'a>(mut offered: impl Iterator<Item = &'a str> + Clone) -> Option<Protocol> {
    if offered.clone().next().is_none() {
        return Some(UNNAMED);
    }
    offered.find_map(|name| PROTOCOLS.into_iter().find(|protocol| protocol.name == name))
}

/// What a message of the client says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Bytes on a channel.
    Data(u8, Vec<u8>),
    /// A channel has ended.
    End(u8),
    /// Nothing that concerns us.
    Nothing,
}

impl Protocol {
    /// Reads a message of the client.
    pub fn read(self, message: &[u8]) -> Input {
        let Some((&first, rest)) = message.split_first() else { return Input::Nothing };
        if self.base64 {
            let channel = first.wrapping_sub(b'0');
            return STANDARD.decode(rest).map_or(Input::Nothing, |data| Input::Data(channel, data));
        }
        match (first, rest) {
            (CLOSE, &[channel]) if self.close => Input::End(channel),
            (CLOSE, _) if self.close => Input::Nothing,
            (channel, data) => Input::Data(channel, data.to_vec()),
        }
    }

    /// Content of a message to the client.
    pub fn write(self, channel: u8, data: &[u8]) -> Vec<u8> {
        if self.base64 {
            let mut text = vec![b'0' + (channel % 10)];
            text.extend(STANDARD.encode(data).into_bytes());
            return text;
        }
        [&[channel], data].concat()
    }

    /// What the error channel says at the end, if anything.
    pub fn verdict(self, outcome: &Result<i32, HandlerError>) -> Option<Vec<u8>> {
        verdict(self.status, outcome)
    }
}

/// What the error channel says at the end: a `Status` in the newer protocols, words in case of failure in the older ones.
pub fn verdict(as_status: bool, outcome: &Result<i32, HandlerError>) -> Option<Vec<u8>> {
    let status = status(outcome);
    if as_status {
        return serde_json::to_vec(&status).ok();
    }
    (status.status.as_deref() == Some("Failure")).then(|| status.message.unwrap_or_default().into_bytes())
}

/// The end of a session as clients are told it.
pub fn status(outcome: &Result<i32, HandlerError>) -> Status {
    let failure = |reason: &str, message: String, code: i32, cause: Option<StatusCause>| Status {
        status: Some("Failure".into()),
        reason: Some(reason.into()),
        message: Some(message),
        code: Some(code),
        details: cause.map(|cause| StatusDetails { causes: Some(vec![cause]), ..StatusDetails::default() }),
        ..Status::default()
    };
    match outcome {
        Ok(0) => Status { status: Some("Success".into()), ..Status::default() },
        Ok(code) => {
            let cause = StatusCause { reason: Some("ExitCode".into()), message: Some(code.to_string()), field: None };
            failure("NonZeroExitCode", format!("command terminated with non-zero exit code: {code}"), 500, Some(cause))
        }
        Err(error) => failure("InternalError", format!("Internal error occurred: {}", error.answer().1), 500, None),
    }
}

/// Most bytes that a size may have: it is a small JSON object.
const LONGEST_SIZE: usize = 4096;

/// Finds sizes in a stream of JSON objects `{"Width":80,"Height":24}`, however it is cut.
#[derive(Default)]
pub struct Sizes {
    pending: Vec<u8>,
}

impl Sizes {
    /// Adds bytes and returns the latest whole size. Bytes that are none are dropped.
    pub fn push(&mut self, bytes: &[u8]) -> Option<TerminalSize> {
        self.pending.extend_from_slice(bytes);
        let mut values = serde_json::Deserializer::from_slice(&self.pending).into_iter::<serde_json::Value>();
        let mut latest = None;
        let rest = loop {
            match values.next() {
                None => break values.byte_offset(),
                Some(Err(error)) if error.is_eof() => break values.byte_offset(),
                Some(Err(_)) => break self.pending.len(),
                Some(Ok(value)) => {
                    let number = |name: &str| value.get(name).and_then(serde_json::Value::as_u64).and_then(|n| u16::try_from(n).ok());
                    if let (Some(width), Some(height)) = (number("Width"), number("Height")) {
                        latest = Some(TerminalSize { width, height });
                    }
                }
            }
        };
        self.pending.drain(..rest.min(self.pending.len()));
        if self.pending.len() > LONGEST_SIZE {
            self.pending.clear();
        }
        latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_first_known_protocol_is_spoken() {
        let negotiate = |offered: &[&'static str]| negotiate(offered.iter().copied()).map(|protocol| protocol.name);
        assert_eq!(negotiate(&["v5.channel.k8s.io", "v4.channel.k8s.io"]), Some("v5.channel.k8s.io"));
        assert_eq!(negotiate(&["v9.channel.k8s.io", "v4.base64.channel.k8s.io"]), Some("v4.base64.channel.k8s.io"));
        assert_eq!(negotiate(&[]), Some(""));
        assert_eq!(negotiate(&["graphql-ws"]), None);
    }

    #[test]
    fn only_v5_ends_single_channels() {
        let [v5, v4, base64, ..] = PROTOCOLS;
        assert_eq!(v5.read(&[255, 0]), Input::End(0));
        assert_eq!(v5.read(&[255]), Input::Nothing);
        assert_eq!(v4.read(&[255, 0]), Input::Data(255, vec![0]));
        assert_eq!(v4.read(b"\x00hello"), Input::Data(STDIN, b"hello".to_vec()));
        assert_eq!(base64.read(b"0aGVsbG8="), Input::Data(STDIN, b"hello".to_vec()));
        assert_eq!(base64.read(b"0*"), Input::Nothing);
        assert_eq!(v5.read(&[]), Input::Nothing);
        assert_eq!(base64.read(&base64.write(STDERR, b"x")), Input::Data(STDERR, b"x".to_vec()));
    }

    #[test]
    fn the_verdict_tells_the_exit_code_as_a_kubelet_does() {
        let [v5, .., old] = PROTOCOLS;
        let told: serde_json::Value = serde_json::from_slice(&v5.verdict(&Ok(7)).unwrap()).unwrap();
        assert_eq!(told["status"], "Failure");
        assert_eq!(told["reason"], "NonZeroExitCode");
        assert_eq!(told["details"]["causes"][0], serde_json::json!({ "reason": "ExitCode", "message": "7" }));
        let told: serde_json::Value = serde_json::from_slice(&v5.verdict(&Ok(0)).unwrap()).unwrap();
        assert_eq!(told["status"], "Success");
        let told: serde_json::Value = serde_json::from_slice(&v5.verdict(&Err(HandlerError::invalid("no"))).unwrap()).unwrap();
        assert_eq!(told["reason"], "InternalError");
        assert_eq!(old.verdict(&Ok(0)), None);
        assert_eq!(old.verdict(&Ok(7)).unwrap(), b"command terminated with non-zero exit code: 7");
    }

    #[test]
    fn terminal_sizes_are_read_in_pieces_and_nonsense_is_dropped() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.push(br#"{"Width":80,"#), None);
        assert_eq!(sizes.push(br#""Height":24}{"Width":1"#), Some(TerminalSize { width: 80, height: 24 }));
        assert_eq!(sizes.push(br#"00,"Height":40}"#), Some(TerminalSize { width: 100, height: 40 }));
        assert_eq!(sizes.push(b"]]]"), None);
        assert_eq!(sizes.push(br#"{"Width":-1,"Height":99999}"#), None);
        assert_eq!(sizes.push(br#"{"Width":1,"Height":2}"#), Some(TerminalSize { width: 1, height: 2 }));
    }
}
