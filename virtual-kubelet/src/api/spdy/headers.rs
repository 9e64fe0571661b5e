//! Headers of streams: names and values, packed with one running zlib stream per direction.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::dictionary::DICTIONARY;

/// Names, in lower case, and values.
pub type Headers = Vec<(String, String)>;

/// Most bytes that the headers of one frame may become: a packed kilobyte can stand for a megabyte of zeros.
const LONGEST: usize = 64 << 10;

/// Unpacks the headers of all frames of one direction.
pub(super) struct Decompressor {
    zlib: Decompress,
    has_dictionary: bool,
}

impl Decompressor {
    pub fn new() -> Self {
        Self { zlib: Decompress::new(true), has_dictionary: false }
    }

    pub fn headers(&mut self, packed: &[u8]) -> Option<Headers> {
        parse(&self.unpack(packed)?)
    }

    fn unpack(&mut self, mut packed: &[u8]) -> Option<Vec<u8>> {
        let mut out: Vec<u8> = Vec::with_capacity(4096);
        loop {
            if out.len() >= LONGEST {
                return None;
            }
            if out.capacity() == out.len() {
                out.reserve(out.len().max(4096));
            }
            let (taken, made) = (self.zlib.total_in(), out.len());
            let outcome = self.zlib.decompress_vec(packed, &mut out, FlushDecompress::Sync);
            let taken = usize::try_from(self.zlib.total_in() - taken).ok()?;
            packed = packed.get(taken..)?;
            match outcome {
                Err(error) if error.needs_dictionary().is_some() && !self.has_dictionary => {
                    self.zlib.set_dictionary(DICTIONARY).ok()?;
                    self.has_dictionary = true;
                }
                // The stream of headers never ends while the connection lasts.
                Err(_) | Ok(Status::StreamEnd) => return None,
                Ok(_) if packed.is_empty() && out.len() < out.capacity() => return Some(out),
                Ok(_) if taken == 0 && out.len() == made && out.len() < out.capacity() => return None,
                Ok(_) => {}
            }
        }
    }
}

/// Packs the headers of all frames of one direction.
pub(super) struct Compressor {
    zlib: Compress,
}

impl Compressor {
    pub fn new() -> Self {
        let mut zlib = Compress::new(Compression::default(), true);
        // Refused only by a stream that has begun.
        let _ = zlib.set_dictionary(DICTIONARY);
        Self { zlib }
    }

    pub fn block(&mut self, headers: &Headers) -> Vec<u8> {
        let plain = format(headers);
        let mut out = Vec::with_capacity(plain.len() + 64);
        let begun = self.zlib.total_in();
        loop {
            let taken = usize::try_from(self.zlib.total_in() - begun).unwrap_or(usize::MAX);
            let rest = plain.get(taken..).unwrap_or_default();
            if out.capacity() - out.len() < 32 {
                out.reserve(256);
            }
            if self.zlib.compress_vec(rest, &mut out, FlushCompress::Sync).is_err() {
                return out;
            }
            let all = usize::try_from(self.zlib.total_in() - begun).is_ok_and(|taken| taken == plain.len());
            // With room left, everything is flushed.
            if all && out.len() < out.capacity() {
                return out;
            }
        }
    }
}

fn parse(plain: &[u8]) -> Option<Headers> {
    let mut rest = plain;
    let number = |rest: &mut &[u8]| -> Option<usize> {
        let (number, after) = rest.split_first_chunk::<4>()?;
        *rest = after;
        usize::try_from(u32::from_be_bytes(*number)).ok()
    };
    let count = number(&mut rest)?;
    let mut headers = Vec::new();
    for _ in 0..count {
        let mut text = || -> Option<String> {
            let length = number(&mut rest)?;
            let (text, after) = rest.split_at_checked(length)?;
            rest = after;
            String::from_utf8(text.to_vec()).ok()
        };
        let (name, value) = (text()?, text()?);
        headers.push((name.to_ascii_lowercase(), value));
    }
    Some(headers)
}

fn format(headers: &Headers) -> Vec<u8> {
    let number = |number: usize| u32::try_from(number).unwrap_or_default().to_be_bytes();
    let mut plain = number(headers.len()).to_vec();
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        plain.extend(number(text.len()));
        plain.extend(text.as_bytes());
    }
    plain
}

/// The value of a header.
pub fn header<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_unpack_to_more_than_is_taken_are_refused() {
        let large: Headers = vec![("a".into(), "0".repeat(LONGEST))];
        let packed = Compressor::new().block(&large);
        assert!(packed.len() < 1024);
        assert_eq!(Decompressor::new().headers(&packed), None);
    }

    #[test]
    fn a_second_block_refers_to_the_first() {
        let headers: Headers = (0..20).map(|index| (format!("name-{index}"), format!("value-{}", index * 7))).collect();
        let (mut pack, mut unpack) = (Compressor::new(), Decompressor::new());
        let (first, second) = (pack.block(&headers), pack.block(&headers));
        assert!(second.len() < first.len());
        assert_eq!(unpack.headers(&first), Some(headers.clone()));
        assert_eq!(unpack.headers(&second), Some(headers));
    }
}
