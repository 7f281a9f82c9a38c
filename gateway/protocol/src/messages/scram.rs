//! DescribeUserScramCredentials and AlterUserScramCredentials: which users have passwords (KIP-554).

use bytes::Bytes;

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

    /// Sets and deletes credentials of users: all of a user's, or none.
    pub struct AlterUserScramCredentialsRequest {
        deletions: Vec<ScramCredentialDeletion> [0..],
        upsertions: Vec<ScramCredentialUpsertion> [0..],
    }

    /// A credential to delete.
    pub struct ScramCredentialDeletion {
        name: Str [0..],
        mechanism: i8 [0..],
    }

    /// A credential to set. The password is salted by the client.
    pub struct ScramCredentialUpsertion {
        name: Str [0..],
        mechanism: i8 [0..],
        iterations: i32 [0..],
        salt: Bytes [0..],
        salted_password: Bytes [0..],
    }

    /// Which users have what was asked for.
    pub struct AlterUserScramCredentialsResponse {
        throttle_time_ms: i32 [0..],
        results: Vec<AlteredScramUser> [0..],
    }

    /// Whether a user's credentials are as asked for.
    pub struct AlteredScramUser {
        user: Str [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
    }
}
