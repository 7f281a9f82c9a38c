//! Bytes on a socket to one node, right or wrong.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// For an answer, or for the connection to be closed.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// More than any answer asked for here.
const ANSWER_SIZE_BYTES_MAX: usize = 1 << 20;
const CORRELATION: i32 = 0x0BAD_CAFE;

pub(crate) const API_VERSIONS: i16 = 18;
pub(crate) const METADATA: i16 = 3;
const FIND_COORDINATOR: i16 = 10;

/// A connection to a node.
pub(crate) struct Wire(TcpStream);

/// What a node did with what it was sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Closed,
    /// An answer's body.
    Body(Vec<u8>),
}

impl Wire {
    pub(crate) fn connect(node: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&node, ANSWER_WITHIN).unwrap();
        stream.set_read_timeout(Some(ANSWER_WITHIN)).unwrap();
        stream.set_write_timeout(Some(ANSWER_WITHIN)).unwrap();
        Self(stream)
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        match self.0.write_all(bytes) {
            Err(error) if !is_closed(error.kind()) => panic!("{error}"),
            // Whether the node has closed it is what the next read tells.
            _ => {}
        }
    }

    /// The next answer; panics if neither it nor the end comes.
    pub(crate) fn answer(&mut self) -> Answer {
        let mut size = [0; 4];
        match self.0.read_exact(&mut size) {
            Err(error) if is_closed(error.kind()) => return Answer::Closed,
            read => read.expect("an answer, or the end"),
        }
        let size = usize::try_from(i32::from_be_bytes(size)).unwrap();
        assert!((4..ANSWER_SIZE_BYTES_MAX).contains(&size), "an answer of {size} bytes");
        let mut answer = vec![0; size];
        self.0.read_exact(&mut answer).unwrap();
        let body = answer.split_off(4);
        assert_eq!(answer, CORRELATION.to_be_bytes());
        Answer::Body(body)
    }

    /// Whether the connection is still open, with nothing to read.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let read = self.0.read(&mut [0]);
        self.0.set_nonblocking(false).unwrap();
        matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}

fn is_closed(kind: ErrorKind) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// A request with the first version of the header, framed.
pub(crate) fn request(api: i16, version: i16, body: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    payload.extend(api.to_be_bytes());
    payload.extend(version.to_be_bytes());
    payload.extend(CORRELATION.to_be_bytes());
    payload.extend(string("wire"));
    payload.extend(body);
    let mut frame = i32::try_from(payload.len()).unwrap().to_be_bytes().to_vec();
    frame.extend(payload);
    frame
}

/// The node that coordinates a group, if there is one now.
pub(crate) fn find_coordinator(node: SocketAddr, group: &str) -> Option<i32> {
    let mut wire = Wire::connect(node);
    wire.send(&request(FIND_COORDINATOR, 0, &string(group)));
    let Answer::Body(body) = wire.answer() else { return None };
    let error = i16::from_be_bytes(body[..2].try_into().unwrap());
    let id = i32::from_be_bytes(body[2..6].try_into().unwrap());
    (error == 0).then_some(id)
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = i16::try_from(text.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}
