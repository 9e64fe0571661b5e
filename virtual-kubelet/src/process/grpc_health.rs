//! The one call of gRPC that probes make: `grpc.health.v1.Health/Check`.

use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// Most bytes that an answer may have: the message has two.
const LARGEST: usize = 64 << 10;
/// `ServingStatus` of a service that serves.
const SERVING: u64 = 1;

/// The message `HealthCheckRequest` with its gRPC prefix: not compressed, and its length.
fn request(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        // Field 1, of bytes.
        message.push(0x0a);
        put_varint(&mut message, service.len() as u64);
        message.extend_from_slice(service.as_bytes());
    }
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    framed.extend(message);
    framed
}

fn put_varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    into.push(u8::try_from(value).unwrap_or_default());
}

fn take_varint(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The status in a `HealthCheckResponse` with its gRPC prefix; 0, unknown, where it names none.
fn status(framed: &[u8]) -> Option<u64> {
    let (prefix, message) = framed.split_at_checked(5)?;
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    let mut message = message.get(..length).filter(|_| prefix[0] == 0)?;
    let mut status = 0;
    while !message.is_empty() {
        let tag = take_varint(&mut message)?;
        match (tag >> 3, tag & 7) {
            (1, 0) => status = take_varint(&mut message)?,
            (_, 0) => drop(take_varint(&mut message)?),
            (_, 1) => message = message.get(8..)?,
            (_, 2) => {
                let length = usize::try_from(take_varint(&mut message)?).ok()?;
                message = message.get(length..)?;
            }
            (_, 5) => message = message.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

fn grpc_status(headers: &HeaderMap) -> Option<&str> {
    headers.get("grpc-status")?.to_str().ok()
}

/// Asks whether `service` serves; an empty name means the server as a whole.
pub async fn check(stream: TcpStream, authority: &str, service: &str) -> Result<(), String> {
    let failed = |error: hyper::Error| format!("{authority}: {error}");
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(failed)?;
    let call = async {
        let request = Request::post(format!("http://{authority}/grpc.health.v1.Health/Check"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", "kube-probe/1.36")
            .body(Full::new(Bytes::from(self::request(service))))
            .map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(failed)?;
        if !response.status().is_success() {
            return Err(format!("gRPC probe failed with HTTP status {}", response.status()));
        }
        let early = grpc_status(response.headers()).map(str::to_owned);
        let body = Limited::new(response.into_body(), LARGEST).collect().await.map_err(|error| error.to_string())?;
        let code = early.or_else(|| body.trailers().and_then(grpc_status).map(str::to_owned)).unwrap_or_default();
        if code != "0" {
            return Err(format!("gRPC probe failed with code {code}"));
        }
        match status(&body.to_bytes()) {
            Some(SERVING) => Ok(()),
            Some(other) => Err(format!("service unhealthy (responded with status {other})")),
            None => Err("gRPC probe: cannot read the answer".into()),
        }
    };
    let mut call = std::pin::pin!(call);
    tokio::select! {
        outcome = &mut call => outcome,
        // The connection may end in the very moment it delivers the answer.
        _ = connection => call.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_service_if_there_is_one() {
        assert_eq!(request(""), [0, 0, 0, 0, 0]);
        assert_eq!(request("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(request(&"x".repeat(200))[..8], [0, 0, 0, 0, 203, 0x0a, 200, 1]);
    }

    #[test]
    fn a_health_status_is_read_only_from_well_formed_frames() {
        assert_eq!(status(&[0, 0, 0, 0, 0]), Some(0));
        assert_eq!(status(&[0, 0, 0, 0, 2, 8, 1]), Some(1));
        assert_eq!(status(&[0, 0, 0, 0, 6, 0x12, 2, 9, 9, 8, 2]), Some(2));
        for bytes in [&[][..], &[0, 0, 0, 0, 9, 8], &[1, 0, 0, 0, 2, 8, 1], &[0, 0, 0, 0, 1, 8], &[0, 0, 0, 0, 3, 0x12, 255, 255]] {
            assert_eq!(status(bytes), None, "{bytes:?}");
        }
    }
}
