//! What goes over the pipes between a server and its child, and over the sockets before timely gets them: a length and bincode.
//!
//! Invariant: a frame is whole or an error. Bound: [`FRAME_BYTES_MAX`]; a longer one is refused before it is read.
//! Cost: one copy. No state.

use std::{
    io::{self, Read, Write},
    time::Duration,
};

use operators::{FlowRows, ViewChanges};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::config;

/// Longest frame. The largest are the changes of an epoch that is read again from the log.
pub const FRAME_BYTES_MAX: usize = 1 << 30;

/// What a child is told on its first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Number of this process; 0 is the one that is fed.
    pub process: usize,
    /// Where each process listens.
    pub addresses: Vec<String>,
    /// Word that every process must know.
    pub key: String,
    /// Whoever started it takes it for dead when it hears nothing for this long.
    pub silence: Duration,
    /// Settings and number of the generation; process 0 tells the others.
    pub start: Option<Start>,
}

/// What all processes of a generation must have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub generation: u64,
    /// How long processes may be silent to each other.
    pub silence: Duration,
    pub dataflow: config::Dataflow,
}

/// What process 0 is told while it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Order {
    Rows(FlowRows),
    /// Close all epochs before this one.
    Advance(u64),
}

/// What a process says; all but process 0 only beat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Done {
    /// All processes are connected.
    Connected,
    Changes(Box<ViewChanges>),
    /// It runs.
    Beat,
    /// Last word: it ends, since it did not hear this one.
    Silent {
        process: usize,
    },
}

/// A frame as bytes.
pub fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    bincode::serialize_into(&mut bytes, value).map_err(io::Error::other)?;
    let length = bytes.len() - 4;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes is too long")));
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}

/// The value of a frame's body.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    bincode::deserialize(body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

/// Length of the body, from a frame's first four bytes.
pub fn length(head: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(head) as usize;
    match length <= FRAME_BYTES_MAX {
        true => Ok(length),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes is too long"))),
    }
}

/// Writes one frame and flushes.
pub fn write_frame<T: Serialize>(to: &mut impl Write, value: &T) -> io::Result<()> {
    to.write_all(&encode(value)?)?;
    to.flush()
}

/// Reads one frame of at most `most` bytes.
pub fn read_frame_within<T: DeserializeOwned>(from: &mut impl Read, most: usize) -> io::Result<T> {
    let mut head = [0; 4];
    from.read_exact(&mut head)?;
    let length = length(head)?;
    if length > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes, {most} at most")));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    decode(&body)
}

/// Reads one frame.
pub fn read_frame<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    read_frame_within(from, FRAME_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Scenario: a frame, cut at every byte; a length beyond the bound.
    /// Guarantees: whole or an error, never a part, and no memory for a length that is a lie.
    #[test]
    fn a_frame_is_whole_or_an_error() {
        let order = Order::Advance(7);
        let bytes = encode(&order).unwrap();
        assert_eq!(read_frame::<Order>(&mut bytes.as_slice()).unwrap(), order);
        for cut in 0..bytes.len() {
            assert!(read_frame::<Order>(&mut &bytes[..cut]).is_err());
        }
        assert!(read_frame::<Order>(&mut u32::MAX.to_le_bytes().as_slice()).is_err());
    }

    proptest! {
        /// Scenario: any bytes.
        /// Guarantees: a value or an error, never a panic.
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_frame_within::<Order>(&mut bytes.as_slice(), 1 << 16);
            let _ = decode::<Setup>(&bytes);
            let _ = decode::<Done>(&bytes);
        }
    }
}
