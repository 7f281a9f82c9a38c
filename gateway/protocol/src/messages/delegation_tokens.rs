//! CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken: tokens by which
//! others act for a user (KIP-48, KIP-373).

use bytes::Bytes;

use crate::ErrorCode;
use crate::wire::{Str, message};

message! {
    /// Makes a token.
    pub struct CreateDelegationTokenRequest {
        owner_principal_type: Option<Str> [3..],
        owner_principal_name: Option<Str> [3..],
        renewers: Vec<TokenPrincipal> [0..],
        max_lifetime_ms: i64 [0..],
    }

    /// Who may renew a token, or has it.
    pub struct TokenPrincipal {
        principal_type: Str [0..],
        principal_name: Str [0..],
    }

    /// The token, with what it takes to log in by it.
    pub struct CreateDelegationTokenResponse {
        error_code: ErrorCode [0..],
        principal_type: Str [0..],
        principal_name: Str [0..],
        token_requester_principal_type: Str [3..],
        token_requester_principal_name: Str [3..],
        issue_timestamp_ms: i64 [0..],
        expiry_timestamp_ms: i64 [0..],
        max_timestamp_ms: i64 [0..],
        token_id: Str [0..],
        hmac: Bytes [0..],
        throttle_time_ms: i32 [0..],
    }

    /// Has a token end later.
    pub struct RenewDelegationTokenRequest {
        hmac: Bytes [0..],
        renew_period_ms: i64 [0..],
    }

    /// When it ends.
    pub struct RenewDelegationTokenResponse {
        error_code: ErrorCode [0..],
        expiry_timestamp_ms: i64 [0..],
        throttle_time_ms: i32 [0..],
    }

    /// Has a token end sooner, or now.
    pub struct ExpireDelegationTokenRequest {
        hmac: Bytes [0..],
        expiry_time_period_ms: i64 [0..],
    }

    /// When it ends.
    pub struct ExpireDelegationTokenResponse {
        error_code: ErrorCode [0..],
        expiry_timestamp_ms: i64 [0..],
        throttle_time_ms: i32 [0..],
    }

    /// Asks for the tokens of these owners; null for all.
    pub struct DescribeDelegationTokenRequest {
        owners: Option<Vec<TokenPrincipal>> [0..],
    }

    /// The tokens.
    pub struct DescribeDelegationTokenResponse {
        error_code: ErrorCode [0..],
        tokens: Vec<DescribedDelegationToken> [0..],
        throttle_time_ms: i32 [0..],
    }

    /// A token.
    pub struct DescribedDelegationToken {
        principal_type: Str [0..],
        principal_name: Str [0..],
        token_requester_principal_type: Str [3..],
        token_requester_principal_name: Str [3..],
        issue_timestamp: i64 [0..],
        expiry_timestamp: i64 [0..],
        max_timestamp: i64 [0..],
        token_id: Str [0..],
        hmac: Bytes [0..],
        renewers: Vec<TokenPrincipal> [0..],
    }
}
