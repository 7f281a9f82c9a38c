//! Methods about grants: what the links of other clusters may take from this one.

use bytes::Bytes;
use meridian_access::LinkGrant;
use meridian_consensus::command::{ExpectedVersion, FeatureLevel, RowKind};
use serde::{Deserialize, Serialize};

use super::{AdminCall, json};
use crate::admin_api::AdminError;
use crate::features::agree;
use crate::runtime::tls::is_link_name;

#[derive(Deserialize)]
struct Allow {
    link: String,
    topics: Option<String>,
    groups: Option<String>,
    #[serde(default)]
    quotas: bool,
    #[serde(default)]
    switchover: bool,
    #[serde(default)]
    acls: bool,
    #[serde(default)]
    users: bool,
}

#[derive(Deserialize)]
struct Named {
    link: String,
}

#[derive(Serialize)]
struct GrantReport {
    link: String,
    #[serde(flatten)]
    grant: LinkGrant,
    /// Why the link may do nothing though it has a grant.
    unusable: Option<String>,
}

impl AdminCall {
    /// Grants rights to a link, in place of those that it had.
    pub(super) async fn allow_link(&self) -> Result<Bytes, AdminError> {
        let Allow { link, topics, groups, quotas, switchover, acls, users } = self.arguments()?;
        if !is_link_name(&link) {
            let refused = format!(
                "{link:?} is no name of a link's certificate: 1 to 58 of [a-z0-9-], as `meridian cert link` takes it"
            );
            return Err(AdminError::InvalidArguments(refused));
        }
        let grant = LinkGrant { topics, groups, quotas, switchover, acls, users };
        let compiled = grant.compile();
        compiled.map_err(|error| AdminError::InvalidArguments(error.to_string()))?;
        // A node that does not know what is granted would give the link no rights at all.
        let level = if acls || users { FeatureLevel::RULES } else { FeatureLevel::ACCESS };
        agree(&*self.node, level).await?;
        let value = Some(grant.encode());
        self.put(RowKind::LinkGrant, link.as_bytes(), value, ExpectedVersion::Any).await?;
        json(&GrantReport { link, grant, unusable: None })
    }

    /// The grants of all links.
    pub(super) fn list_grants(&self) -> Result<Bytes, AdminError> {
        let metadata = self.node.meta.metadata();
        let report = |key: &[u8], value: &[u8]| {
            let link = String::from_utf8_lossy(key).into_owned();
            let decoded = LinkGrant::decode(value);
            let unusable = decoded.as_ref().map(LinkGrant::compile).map_or_else(
                |error| Some(error.to_string()),
                |compiled| compiled.err().map(|error| error.to_string()),
            );
            GrantReport { link, grant: decoded.unwrap_or_default(), unusable }
        };
        let rows = metadata.extra_rows(RowKind::LinkGrant);
        json(&rows.map(|(key, row)| report(key, &row.value)).collect::<Vec<_>>())
    }

    /// Takes all rights of a link away: it may do nothing from its next request on.
    pub(super) async fn disallow_link(&self) -> Result<Bytes, AdminError> {
        let Named { link } = self.arguments()?;
        let key = link.as_bytes();
        let version = {
            let metadata = self.node.meta.metadata();
            metadata.extra_row(RowKind::LinkGrant, key).map(|row| row.version)
        };
        let version = version.ok_or_else(|| {
            let advice = "`meridian link allowed` shows which have one";
            AdminError::Failed(format!("link {link} has no grant; {advice}"))
        })?;
        self.put(RowKind::LinkGrant, key, None, ExpectedVersion::Exactly(version)).await?;
        json(&GrantReport { link, grant: LinkGrant::default(), unusable: None })
    }
}
