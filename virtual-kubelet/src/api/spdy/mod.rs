//! The server's side of SPDY/3.1, as far as clients of kubelets speak it: streams with headers, data, ends and resets;
//! no flow control, priorities or server push.

mod connection;
mod dictionary;
mod frame;
mod headers;

pub use connection::{Incoming, accept};
pub use frame::{Frame, FrameError, Reader, Writer};
pub use headers::{Headers, header};
