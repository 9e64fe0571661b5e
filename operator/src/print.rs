//! What commands print.

use anyhow::Context as _;
use std::io::{ErrorKind, Write};

/// Writes all of a text. Whoever reads may stop before its end, as `head` does: that is no error.
pub fn print(to: &mut impl Write, text: &str) -> anyhow::Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("writing the output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken(ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn printing_fails_on_a_full_disk_but_not_broken_pipe() {
        let mut written = Vec::new();
        print(&mut written, "all of it\n").unwrap();
        assert_eq!(written, b"all of it\n");
        print(&mut Broken(ErrorKind::BrokenPipe), "text").unwrap();
        assert!(print(&mut Broken(ErrorKind::StorageFull), "text").is_err());
    }
}
