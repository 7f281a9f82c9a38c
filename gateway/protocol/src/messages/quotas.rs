//! DescribeClientQuotas and AlterClientQuotas (KIP-546).

use crate::ErrorCode;
use crate::wire::{Float64, Str, message};

message! {
    /// Asks for the quotas of the entities that all components match; if strictly, of those alone
    /// that have no other parts.
    pub struct DescribeClientQuotasRequest {
        components: Vec<QuotaFilterComponent> [0..],
        strict: bool [0..],
    }

    /// A part that an entity must have: exactly this name 0, the default 1, any name 2.
    pub struct QuotaFilterComponent {
        entity_type: Str [0..],
        match_type: i8 [0..],
        // `match` in the protocol, which is a word of the language.
        matched: Option<Str> [0..],
    }

    /// The quotas. Null if there was an error.
    pub struct DescribeClientQuotasResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        entries: Option<Vec<QuotaEntry>> [0..],
    }

    /// The quotas of one entity.
    pub struct QuotaEntry {
        entity: Vec<QuotaEntityPart> [0..],
        values: Vec<QuotaValue> [0..],
    }

    /// A part of an entity: `user`, `client-id` or `ip`. Null names whoever has none of its own.
    pub struct QuotaEntityPart {
        entity_type: Str [0..],
        entity_name: Option<Str> [0..],
    }

    /// One quota.
    pub struct QuotaValue {
        key: Str [0..],
        value: Float64 [0..],
    }

    /// Changes quotas.
    pub struct AlterClientQuotasRequest {
        entries: Vec<QuotaAlteration> [0..],
        validate_only: bool [0..],
    }

    /// Changes to the quotas of one entity.
    pub struct QuotaAlteration {
        entity: Vec<QuotaEntityPart> [0..],
        ops: Vec<QuotaOp> [0..],
    }

    /// Sets or removes one quota.
    pub struct QuotaOp {
        key: Str [0..],
        value: Float64 [0..],
        remove: bool [0..],
    }

    /// Which entities were changed.
    pub struct AlterClientQuotasResponse {
        throttle_time_ms: i32 [0..],
        entries: Vec<AlteredQuota> [0..],
    }

    /// Whether one entity was changed.
    pub struct AlteredQuota {
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        entity: Vec<QuotaEntityPart> [0..],
    }
}
