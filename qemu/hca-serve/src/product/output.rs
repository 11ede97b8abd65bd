//! Output that never blocks its producer. A separate thread writes, and bytes that do not fit in
//! its queue are counted as lost.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Limit of queued lines, in bytes.
const LINES_LIMIT: usize = 1 << 20;
/// Limit of queued capture data, in bytes.
const BLOCKS_LIMIT: usize = 64 << 20;
/// Time limit for writing the queue before exit.
const LAST_WORD: Duration = Duration::from_secs(2);

/// A named pipe, opened by the writing thread. Opening blocks until a reader opens the pipe.
#[derive(Debug)]
pub struct Fifo {
    path: PathBuf,
    open: Option<File>,
}

impl Fifo {
    /// Creates the writer of the pipe at `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf(), open: None }
    }

    fn open(&mut self) -> io::Result<&mut File> {
        match &mut self.open {
            Some(file) => Ok(file),
            none => Ok(none.insert(File::options().write(true).open(&self.path)?)),
        }
    }
}

impl Write for Fifo {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.open()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Item {
    Bytes(Vec<u8>),
    /// Reply after everything before this item was written.
    Flush(Sender<io::Result<()>>),
}

/// Queue of bytes for a writer.
#[derive(Debug, Clone)]
struct Queue {
    items: Sender<Item>,
    waiting: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
    limit: usize,
}

impl Queue {
    fn new(name: &str, limit: usize, mut writer: impl Write + Send + 'static) -> Self {
        let (items, queue) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = Arc::clone(&waiting);
        // If the thread does not start, all bytes count as lost.
        let _ = std::thread::Builder::new().name(name.into()).spawn(move || {
            let mut error = None;
            for item in queue {
                match item {
                    Item::Bytes(bytes) => {
                        if error.is_none() {
                            error = writer.write_all(&bytes).and_then(|()| writer.flush()).err();
                        }
                        written.fetch_sub(bytes.len(), Ordering::AcqRel);
                    }
                    // An error means that the requester no longer waits.
                    Item::Flush(answer) => drop(answer.send(error.take().map_or(Ok(()), Err))),
                }
            }
        });
        Self { items, waiting, lost: Arc::default(), limit }
    }

    /// Queues `bytes`, or counts them as lost.
    fn push(&self, bytes: Vec<u8>) {
        let len = bytes.len();
        if self.waiting.fetch_add(len, Ordering::AcqRel).saturating_add(len) > self.limit
            || self.items.send(Item::Bytes(bytes)).is_err()
        {
            self.waiting.fetch_sub(len, Ordering::AcqRel);
            self.lost.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Waits until everything is written, at most for `limit`.
    fn flush(&self, limit: Duration) -> io::Result<()> {
        let (answer, written) = mpsc::channel();
        let gone = || io::Error::other("the thread that writes has ended");
        self.items.send(Item::Flush(answer)).map_err(|_| gone())?;
        match written.recv_timeout(limit) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(io::Error::new(io::ErrorKind::TimedOut, "nobody reads")),
            Err(RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }
}

/// Lines of text for people.
#[derive(Debug, Clone)]
pub struct Lines(Queue);

impl Lines {
    /// Creates a queue of lines to `writer`.
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        Self(Queue::new("log", LINES_LIMIT, writer))
    }

    /// Returns the queue to standard error. All callers share it.
    pub fn stderr() -> Self {
        static STDERR: OnceLock<Lines> = OnceLock::new();
        STDERR.get_or_init(|| Self::new(io::stderr())).clone()
    }

    /// Queues a line if there is space.
    pub fn print(&self, line: String) {
        let lost = self.0.lost.swap(0, Ordering::AcqRel);
        if lost > 0 {
            self.0.push(format!("{lost} lines lost: nobody read them\n").into_bytes());
        }
        let mut line = line.into_bytes();
        line.push(b'\n');
        self.0.push(line);
    }

    /// Waits until everything is printed, for a limited time.
    pub fn flush(&self) {
        // An error could not be reported, because this is the output for errors.
        let _ = self.0.flush(LAST_WORD);
    }
}

/// Blocks of a capture for a pipe. Each `write` is a complete block, which is either written or
/// lost.
#[derive(Debug)]
pub struct Blocks(Queue);

impl Blocks {
    /// Creates a queue of blocks to `writer`.
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        Self(Queue::new("capture", BLOCKS_LIMIT, writer))
    }
}

impl Write for Blocks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush(LAST_WORD)?;
        match self.0.lost.load(Ordering::Acquire) {
            0 => Ok(()),
            lost => Err(io::Error::other(format!("{lost} packets were lost because the reader was slow"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{BufRead, BufReader, Read};

    #[test]
    fn lines_for_a_full_pipe_are_counted_and_nobody_waits() {
        let (read, write) = rustix::pipe::pipe().expect("pipe");
        let lines = Lines::new(File::from(write));
        for n in 0..100_000 {
            lines.print(format!("line {n} of many, each of them long enough to fill a pipe"));
        }
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            BufReader::new(File::from(read)).read_to_string(&mut text).map(|_| text)
        });
        // The queue is empty now; the next line reports the loss.
        lines.flush();
        lines.print("the last".into());
        drop(lines);
        let text = reader.join().expect("a reader").expect("text");
        assert!(text.contains("lines lost") && text.ends_with("the last\n"), "{}", text.lines().count());
        assert!(text.lines().next().is_some_and(|line| line.starts_with("line 0 of")));
    }

    #[test]
    fn a_capture_says_when_it_is_not_whole() {
        let (read, write) = rustix::pipe::pipe().expect("pipe");
        let mut blocks = Blocks::new(File::from(write));
        for _ in 0..80 {
            blocks.write_all(&vec![1; 1 << 20]).expect("queued");
        }
        let reader = std::thread::spawn(move || {
            let mut reader = BufReader::new(File::from(read));
            let mut seen = 0;
            while let Ok(part) = reader.fill_buf().map(<[u8]>::len)
                && part > 0
            {
                seen += part;
                reader.consume(part);
            }
            seen
        });
        let told = blocks.flush().expect_err("not whole").to_string();
        assert!(told.contains("lost because the reader was slow"), "{told}");
        drop(blocks);
        let seen = reader.join().expect("a reader");
        assert!((63 << 20..80 << 20).contains(&seen) && seen % (1 << 20) == 0, "{seen}");
    }
}
