//! DescribeUserScramCredentials: which users have passwords (KIP-554).

use crate::ErrorCode;
use crate::wire::{Str, message};

message! {
    /// Asks for the credentials of users. Null, or none, asks for all users.
    pub struct DescribeUserScramCredentialsRequest {
        users: Option<Vec<ScramUserName>> [0..],
    }

    /// A user who is asked for.
    pub struct ScramUserName {
        name: Str [0..],
    }

    /// The credentials.
    pub struct DescribeUserScramCredentialsResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        results: Vec<DescribedScramUser> [0..],
    }

    /// The credentials of a user.
    pub struct DescribedScramUser {
        user: Str [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        credential_infos: Vec<ScramCredentialInfo> [0..],
    }

    /// One credential, without its secret.
    pub struct ScramCredentialInfo {
        mechanism: i8 [0..],
        iterations: i32 [0..],
    }
}
