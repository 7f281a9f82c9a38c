//! Who a client is and what it may do, without I/O.
//!
//! A connection has a [`Principal`]. Each request asks for an [`Operation`] on a [`Resource`].
//! The node (`gateway/src/kafka`) asks this crate, and no handler decides by itself.

mod certificate;
mod decisions;
mod grant;
mod oauth;
mod principal;
mod resource;
mod rule;
mod rules;
mod sasl;
mod scram;
mod token;

pub use self::certificate::{CertificateError, NameRuleError, NameRules, UserName, user_of};
pub use self::decisions::Decisions;
pub use self::grant::{GrantError, LinkGrant, LinkRights};
pub use self::oauth::{BearerToken, TOKEN_DISMISSED, TOKEN_REFUSED};
pub use self::principal::{Principal, PrincipalError, PrincipalKind};
pub use self::resource::{Operation, PatternType, Permission, Resource, ResourceType};
pub use self::rule::{Pattern, PatternFilter, Rule, RuleError, RuleFilter, WILDCARD};
pub use self::rules::{Operations, Rules, Verdict, deciding, is_open_to_all};
pub use self::sasl::{Claim, Mechanism};
pub use self::scram::{
    Credential, CredentialError, ITERATION_COUNT_DEFAULT, ScramError, ScramFirst, ScramHash,
    ScramServer, Shape,
};
pub use self::token::{
    TOKEN_SIZE_BYTES_MAX, TokenError, TokenHolder, TokenKeys, TokenKeysError, TokenRules, holder_of,
};
