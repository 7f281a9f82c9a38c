//! What can go wrong between us and a cluster.

use std::io;
use std::time::Duration;

use meridian_protocol::records::BatchError;
use meridian_protocol::{ApiKey, DecodeError, EncodeError, ErrorCode};

/// Why a request did not get the answer it was sent for.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of each variant says what it is")]
pub enum ClientError {
    #[error("cannot reach a broker at {addresses}: {last}; {}", .last.advice())]
    Unreachable { addresses: String, last: Box<ClientError> },
    #[error("cannot connect to {address}: {source}")]
    Connect { address: String, source: io::Error },
    #[error("cannot connect to {address}: no answer within {after:?}")]
    ConnectTimeout { address: String, after: Duration },
    #[error("no secure connection to {address}: {detail}")]
    Tls { address: String, detail: String },
    #[error("{address} does not take us for {username}: {detail}")]
    Authentication { address: String, username: String, detail: String },
    #[error(
        "{address} closed the connection before it answered; whether the request took effect is \
         unknown"
    )]
    Disconnected { address: String },
    #[error(
        "{address} did not answer {api} within {after:?}; whether the request took effect is \
         unknown"
    )]
    Timeout { address: String, api: ApiKey, after: Duration },
    #[error("{address} does not offer {api}; upgrade it, or use another")]
    Unsupported { address: String, api: ApiKey },
    #[error("{address} sent an answer to {api} that cannot be read: {source}")]
    Decode { address: String, api: ApiKey, source: DecodeError },
    #[error("{api} cannot be sent: {source}")]
    Encode { api: ApiKey, source: EncodeError },
    #[error("{address} left {what} out of its answer to {api}")]
    Incomplete { address: String, api: ApiKey, what: String },
    #[error("{what}: {}", said(*.code, .message.as_deref()))]
    Server { what: String, code: ErrorCode, message: Option<String> },
    #[error("topic {topic} does not exist; create it with `meridian topic create {topic}`")]
    UnknownTopic { topic: String },
    #[error("topic {topic} is not granted to this client (TOPIC_AUTHORIZATION_FAILED)")]
    RefusedTopic { topic: String },
    #[error("topic {topic} has no partition {partition}; it has {count}, counted from 0")]
    UnknownPartition { topic: String, partition: i32, count: usize },
    #[error(
        "partition {topic}-{partition} has no leader; `meridian cluster status` shows what is down"
    )]
    NoLeader { topic: String, partition: i32 },
    #[error("node {node} is down or unknown; `meridian node list` shows which there are")]
    UnknownBroker { node: i32 },
    #[error("partition {topic}-{partition} holds a batch that cannot be read: {source}")]
    Batch { topic: String, partition: i32, source: BatchError },
    #[error(
        "offset {offset} is not in partition {topic}-{partition}; `meridian topic describe \
         {topic}` shows which are"
    )]
    OffsetOutOfRange { topic: String, partition: i32, offset: i64 },
}

impl ClientError {
    /// What to do if no broker can be reached for this.
    fn advice(&self) -> &'static str {
        match self {
            Self::Authentication { .. } => "check the user, the password and sasl.mechanism",
            Self::Tls { .. } => {
                "check security.protocol and ssl.ca.location: the port may be one without TLS, or another authority's"
            }
            Self::Disconnected { .. } => {
                "the port may want TLS or a login: set security.protocol and what belongs to it"
            }
            _ => "start one with `meridian serve`, or name another with --bootstrap HOST:PORT",
        }
    }

    /// The error of a response, unless it has none.
    pub fn check(
        what: impl FnOnce() -> String,
        code: ErrorCode,
        message: Option<&str>,
    ) -> Result<(), Self> {
        if code.is_none() {
            return Ok(());
        }
        Err(Self::Server { what: what(), code, message: message.map(str::to_owned) })
    }

    /// Whether the same request may work later, perhaps elsewhere.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Connect { .. }
            | Self::ConnectTimeout { .. }
            | Self::Disconnected { .. }
            | Self::Timeout { .. }
            | Self::NoLeader { .. }
            | Self::UnknownTopic { .. }
            | Self::UnknownBroker { .. } => true,
            Self::Server { code, .. } => code.is_retriable(),
            Self::RefusedTopic { .. }
            | Self::Tls { .. }
            | Self::Authentication { .. }
            | Self::Unsupported { .. }
            | Self::Decode { .. }
            | Self::Encode { .. }
            | Self::Incomplete { .. }
            | Self::UnknownPartition { .. }
            | Self::Batch { .. }
            | Self::OffsetOutOfRange { .. } => false,
        }
    }
}

/// What a server said. That it has no code for what it says tells nobody anything.
fn said(code: ErrorCode, message: Option<&str>) -> String {
    match message {
        Some(message) if code == ErrorCode::UnknownServerError => message.to_owned(),
        Some(message) => format!("{code}: {message}"),
        None => code.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_refusal_says_what_was_refused_and_why() {
        let check = |code, message| {
            ClientError::check(|| "topic t".to_owned(), code, message).map_err(|e| e.to_string())
        };
        assert_eq!(check(ErrorCode::None, None), Ok(()));
        assert_eq!(
            check(ErrorCode::InvalidConfig, Some("no such config")).unwrap_err(),
            "topic t: INVALID_CONFIG: no such config"
        );
        assert_eq!(
            check(ErrorCode::TopicAlreadyExists, None).unwrap_err(),
            "topic t: TOPIC_ALREADY_EXISTS"
        );
        assert_eq!(
            check(ErrorCode::UnknownServerError, Some("no such link")).unwrap_err(),
            "topic t: no such link"
        );
    }
}
