//! Frames in a stream, after their length, or in datagrams.

use super::datagram::Datagrams;
use crate::link::buffers::{Buffers, CableWork};
use crate::link::stream::Broken;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Longest frame of QEMU's network devices (`NET_BUFSIZE`), in bytes.
pub const LONGEST: usize = 4096 + 65536;

/// A network device's socket. No method blocks.
#[derive(Debug)]
pub enum Socket {
    /// Stream of `-netdev stream`: a frame's length (4 bytes, big endian) precedes it.
    Stream {
        buffers: Buffers,
        /// True if the socket is readable.
        readable: bool,
    },
    /// Datagrams of `-netdev dgram`: each is a frame.
    Datagrams(Datagrams),
}

impl Socket {
    /// Makes the socket of a connected stream.
    pub const fn stream(buffers: Buffers) -> Self {
        Self::Stream { buffers, readable: true }
    }

    /// Adds the socket to an epoll set, without interest in events.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn add_to(&self, token: u64, epoll: &OwnedFd) -> Result<(), Errno> {
        match self {
            Self::Stream { buffers, .. } => {
                epoll::add(epoll, buffers.socket(), EventData::new_u64(token), EventFlags::empty())
            }
            Self::Datagrams(datagrams) => datagrams.add_to(token, epoll),
        }
    }

    /// Handles readiness.
    pub const fn event(&mut self) {
        if let Self::Stream { readable, .. } = self {
            *readable = true;
        }
    }

    /// Reads once from a stream that is readable.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn read(&mut self, work: &mut CableWork) -> Result<(), Broken> {
        if let Self::Stream { buffers, readable } = self
            && std::mem::take(readable)
            && !buffers.paused
        {
            work.reads += 1;
            buffers.read()?;
        }
        Ok(())
    }

    /// Appends the next frame to `bytes`. Returns false if there is none.
    ///
    /// # Errors
    /// [`Broken::Length`] for a frame that no device sends.
    pub fn next(&mut self, bytes: &mut Vec<u8>, work: &mut CableWork) -> Result<bool, Broken> {
        let buffers = match self {
            Self::Stream { buffers, .. } => buffers,
            Self::Datagrams(datagrams) => {
                work.reads += 1;
                return datagrams.receive(bytes);
            }
        };
        let Some((length, rest)) = buffers.unread().split_first_chunk::<4>() else { return Ok(false) };
        let len = u32::from_be_bytes(*length);
        if len as usize > LONGEST {
            return Err(Broken::Length { bytes: len, most: LONGEST });
        }
        let Some(frame) = rest.get(..len as usize) else { return Ok(false) };
        bytes.extend_from_slice(frame);
        buffers.consume(4 + len as usize);
        Ok(true)
    }

    /// Returns whether there is a device at the other end.
    pub const fn has_peer(&self) -> bool {
        match self {
            Self::Stream { .. } => true,
            Self::Datagrams(datagrams) => datagrams.has_peer(),
        }
    }

    /// Takes no frames from now on, or does again.
    pub const fn set_paused(&mut self, paused: bool) {
        match self {
            Self::Stream { buffers, .. } => buffers.paused = paused,
            Self::Datagrams(datagrams) => datagrams.paused = paused,
        }
    }

    /// Returns whether no frames are taken.
    pub const fn is_paused(&self) -> bool {
        match self {
            Self::Stream { buffers, .. } => buffers.paused,
            Self::Datagrams(datagrams) => datagrams.paused,
        }
    }

    /// Returns whether frames to the device must wait.
    pub fn is_congested(&self) -> bool {
        match self {
            Self::Stream { buffers, .. } => buffers.is_congested(),
            Self::Datagrams(datagrams) => datagrams.is_congested(),
        }
    }

    /// Sends a frame, or queues it.
    pub fn send(&mut self, frame: &[u8]) {
        match self {
            Self::Stream { buffers, .. } => {
                buffers.queue(&(frame.len() as u32).to_be_bytes());
                buffers.queue(frame);
            }
            Self::Datagrams(datagrams) => datagrams.send(frame),
        }
    }

    /// Sends what is queued.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn flush(&mut self) -> Result<(), Broken> {
        match self {
            Self::Stream { buffers, .. } => buffers.flush().map(drop),
            Self::Datagrams(datagrams) => {
                datagrams.flush();
                Ok(())
            }
        }
    }

    /// Updates the events to wait for.
    pub fn follow(&mut self, token: u64, epoll: &OwnedFd) {
        match self {
            Self::Stream { buffers, .. } => buffers.follow(token, epoll),
            Self::Datagrams(datagrams) => datagrams.follow(token, epoll),
        }
    }
}
