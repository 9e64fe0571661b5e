//! The server's side of SPDY/3.1, as far as clients of kubelets speak it.
//!
//! Bytes of a connection come in and streams with headers, data, ends and resets go out, or the other way round. There is no flow control,
//! priority or server push, and nothing here knows what a stream is for.

mod connection;
mod dictionary;
mod frame;
mod headers;

pub use connection::{Incoming, accept};
pub use frame::{Frame, FrameError, Reader, Writer};
pub use headers::{Headers, header};
