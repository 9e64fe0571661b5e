//! Frames of SPDY/3.1 and their bytes; no I/O.

use super::headers::{Compressor, Decompressor, Headers};

/// Longest frame that is taken. Clients send pieces of 32 KiB; the format would allow 16 MiB.
const LONGEST: usize = 1 << 20;
/// Version in each control frame.
const VERSION: u16 = 3;
/// Length of what comes before each frame's content.
const HEAD: usize = 8;
/// Highest stream id.
const ID: u32 = 0x7fff_ffff;
const FIN: u8 = 1;

/// Why bytes are no SPDY.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame is longer than we take.
    #[error("a SPDY frame of {0} bytes is too long")]
    TooLong(usize),
    /// A control frame of another version.
    #[error("SPDY version {0} is not supported")]
    Version(u16),
    /// Contents that do not fit the frame's kind.
    #[error("a SPDY frame of kind {0} is malformed")]
    Malformed(u16),
    /// Headers that cannot be unpacked, after which nothing on the connection can.
    #[error("cannot read the headers of a SPDY frame")]
    Headers,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Bytes on a stream.
    Data {
        /// The stream.
        stream: u32,
        /// Whether these are the last.
        fin: bool,
        /// The bytes.
        data: Vec<u8>,
    },
    /// A stream begins.
    SynStream {
        /// The stream.
        stream: u32,
        /// Whether its sender will send nothing on it.
        fin: bool,
        /// What it is for.
        headers: Headers,
    },
    /// A stream was accepted.
    SynReply {
        /// The stream.
        stream: u32,
        /// Whether its sender will send nothing on it.
        fin: bool,
        /// Details.
        headers: Headers,
    },
    /// A stream is torn down.
    RstStream {
        /// The stream.
        stream: u32,
        /// Why.
        status: u32,
    },
    /// Asks for the same number back.
    Ping(u32),
    /// No further streams are taken.
    GoAway {
        /// Last stream that was.
        last: u32,
        /// Why.
        status: u32,
    },
    /// More headers of a stream.
    Headers {
        /// The stream.
        stream: u32,
        /// Whether its sender will send nothing more on it.
        fin: bool,
        /// The headers.
        headers: Headers,
    },
    /// A frame that asks nothing of us: settings, window updates (clients of kubelets know no flow control), and kinds that are
    /// not defined.
    Other(u16),
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_be_bytes)
}

/// Takes frames out of bytes as they come. The packing of headers runs through the whole connection.
pub struct Reader {
    buffer: Vec<u8>,
    unpack: Decompressor,
}

impl Default for Reader {
    fn default() -> Self {
        Self { buffer: Vec::new(), unpack: Decompressor::new() }
    }
}

impl Reader {
    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one.
    pub fn take(&mut self) -> Result<Option<Frame>, FrameError> {
        let (Some(first), Some(second)) = (u32_at(&self.buffer, 0), u32_at(&self.buffer, 4)) else { return Ok(None) };
        let [flags, lengths @ ..] = second.to_be_bytes();
        let length = usize::try_from(u32::from_be_bytes([0, lengths[0], lengths[1], lengths[2]])).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(FrameError::TooLong(length));
        }
        if self.buffer.len() < HEAD + length {
            return Ok(None);
        }
        let rest = self.buffer.split_off(HEAD + length);
        let whole = std::mem::replace(&mut self.buffer, rest);
        let content = whole.get(HEAD..).unwrap_or_default();
        let fin = flags & FIN != 0;
        if first & !ID == 0 {
            return Ok(Some(Frame::Data { stream: first, fin, data: content.to_vec() }));
        }
        let [v1, v2, k1, k2] = first.to_be_bytes();
        let (version, kind) = (u16::from_be_bytes([v1 & 0x7f, v2]), u16::from_be_bytes([k1, k2]));
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        self.control(kind, fin, content).map(Some)
    }

    fn control(&mut self, kind: u16, fin: bool, content: &[u8]) -> Result<Frame, FrameError> {
        let number = |at: usize| u32_at(content, at).ok_or(FrameError::Malformed(kind));
        let stream = |at: usize| number(at).map(|id| id & ID);
        let mut headers = |at: usize| {
            let packed = content.get(at..).ok_or(FrameError::Malformed(kind))?;
            self.unpack.headers(packed).ok_or(FrameError::Headers)
        };
        Ok(match kind {
            1 => Frame::SynStream { stream: stream(0)?, fin, headers: headers(10)? },
            2 => Frame::SynReply { stream: stream(0)?, fin, headers: headers(4)? },
            3 => Frame::RstStream { stream: stream(0)?, status: number(4)? },
            6 => Frame::Ping(number(0)?),
            7 => Frame::GoAway { last: stream(0)?, status: number(4)? },
            8 => Frame::Headers { stream: stream(0)?, fin, headers: headers(4)? },
            other => Frame::Other(other),
        })
    }
}

/// Makes bytes out of frames, in the order in which they are sent.
pub struct Writer {
    pack: Compressor,
}

impl Default for Writer {
    fn default() -> Self {
        Self { pack: Compressor::new() }
    }
}

impl Writer {
    /// The bytes of a frame; nothing for one that has none or is longer than the format allows.
    pub fn bytes(&mut self, frame: &Frame) -> Vec<u8> {
        let flag = |fin: &bool| u8::from(*fin) * FIN;
        match frame {
            Frame::Data { stream, fin, data } => finish((stream & ID).to_be_bytes(), flag(fin), data),
            Frame::SynStream { stream, fin, headers } => {
                let content = [&(stream & ID).to_be_bytes()[..], &[0; 6], &self.pack.block(headers)].concat();
                control(1, flag(fin), &content)
            }
            Frame::SynReply { stream, fin, headers } => {
                control(2, flag(fin), &[&(stream & ID).to_be_bytes()[..], &self.pack.block(headers)].concat())
            }
            Frame::RstStream { stream, status } => control(3, 0, &[(stream & ID).to_be_bytes(), status.to_be_bytes()].concat()),
            Frame::Ping(id) => control(6, 0, &id.to_be_bytes()),
            Frame::GoAway { last, status } => control(7, 0, &[(last & ID).to_be_bytes(), status.to_be_bytes()].concat()),
            Frame::Headers { stream, fin, headers } => {
                control(8, flag(fin), &[&(stream & ID).to_be_bytes()[..], &self.pack.block(headers)].concat())
            }
            Frame::Other(_) => Vec::new(),
        }
    }
}

fn control(kind: u16, flags: u8, content: &[u8]) -> Vec<u8> {
    let [v1, v2] = VERSION.to_be_bytes();
    let [k1, k2] = kind.to_be_bytes();
    finish([v1 | 0x80, v2, k1, k2], flags, content)
}

fn finish(first: [u8; 4], flags: u8, content: &[u8]) -> Vec<u8> {
    let Some([0, l1, l2, l3]) = u32::try_from(content.len()).ok().map(u32::to_be_bytes) else { return Vec::new() };
    [&first[..], &[flags, l1, l2, l3], content].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> Vec<Frame> {
        let headers: Headers = vec![("streamtype".into(), "stdin".into()), ("port".into(), "80".into())];
        vec![
            Frame::SynStream { stream: 1, fin: false, headers: headers.clone() },
            Frame::SynReply { stream: 1, fin: true, headers: Vec::new() },
            Frame::SynStream { stream: 3, fin: true, headers: headers.clone() },
            Frame::Data { stream: 1, fin: false, data: b"hello".to_vec() },
            Frame::Data { stream: ID, fin: true, data: Vec::new() },
            Frame::RstStream { stream: 3, status: 5 },
            Frame::Ping(7),
            Frame::GoAway { last: 3, status: 0 },
            Frame::Headers { stream: 1, fin: false, headers },
        ]
    }

    #[test]
    fn frames_cut_into_pieces_are_read_as_written() {
        let mut writer = Writer::default();
        let bytes: Vec<u8> = every_kind().iter().flat_map(|frame| writer.bytes(frame)).collect();
        for piece in [1, 3, 7, bytes.len()] {
            let (mut reader, mut read) = (Reader::default(), Vec::new());
            for bytes in bytes.chunks(piece) {
                reader.push(bytes);
                while let Some(frame) = reader.take().unwrap() {
                    read.push(frame);
                }
            }
            assert_eq!(read, every_kind());
        }
    }

    #[test]
    fn malformed_frames_are_refused_and_unknown_ones_passed_over() {
        let read = |bytes: &[u8]| {
            let mut reader = Reader::default();
            reader.push(bytes);
            reader.take()
        };
        assert_eq!(read(&[0x80, 2, 0, 6, 0, 0, 0, 0]), Err(FrameError::Version(2)));
        assert_eq!(read(&[0, 0, 0, 1, 0, 0xff, 0, 0]), Err(FrameError::TooLong(0xff_0000)));
        assert_eq!(read(&[0x80, 3, 0, 6, 0, 0, 0, 1, 9]), Err(FrameError::Malformed(6)));
        assert_eq!(read(&[0x80, 3, 0, 1, 0, 0, 0, 10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]), Err(FrameError::Headers));
        assert_eq!(read(&[0x80, 3, 0, 9, 0, 0, 0, 1, 9]), Ok(Some(Frame::Other(9))));
        assert_eq!(read(&[0x80, 3, 0, 9]), Ok(None));
    }
}
