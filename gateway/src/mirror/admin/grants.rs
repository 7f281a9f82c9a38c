//! Methods about grants: what the links of other clusters may take from this one.

use meridian_access::LinkGrant;
use meridian_admin_api::link::{Allow, GrantReport};
use meridian_admin_api::{Besides, OfLink};
use meridian_consensus::command::{ExpectedVersion, FeatureLevel, RowKind};

use super::AdminCall;
use crate::admin_api::AdminError;
use crate::features::agree;
use crate::runtime::tls::is_link_name;

fn report(link: String, grant: LinkGrant, unusable: Option<String>) -> GrantReport {
    let LinkGrant { topics, groups, quotas, switchover, acls, users } = grant;
    let besides = Besides::new();
    GrantReport { link, topics, groups, quotas, switchover, acls, users, unusable, besides }
}

impl AdminCall {
    /// Grants rights to a link, in place of those that it had.
    pub(super) async fn allow_link(&self, allow: Allow) -> Result<GrantReport, AdminError> {
        let Allow { link, topics, groups, quotas, switchover, acls, users } = allow;
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
        Ok(report(link, grant, None))
    }

    /// The grants of all links.
    pub(super) fn list_grants(&self) -> Vec<GrantReport> {
        let metadata = self.node.meta.metadata();
        let shown = |key: &[u8], value: &[u8]| {
            let link = String::from_utf8_lossy(key).into_owned();
            let decoded = LinkGrant::decode(value);
            let unusable = decoded.as_ref().map(LinkGrant::compile).map_or_else(
                |error| Some(error.to_string()),
                |compiled| compiled.err().map(|error| error.to_string()),
            );
            report(link, decoded.unwrap_or_default(), unusable)
        };
        let rows = metadata.extra_rows(RowKind::LinkGrant);
        rows.map(|(key, row)| shown(key, &row.value)).collect()
    }

    /// Takes all rights of a link away: it may do nothing from its next request on.
    pub(super) async fn disallow_link(
        &self,
        OfLink { link }: OfLink,
    ) -> Result<GrantReport, AdminError> {
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
        Ok(report(link, LinkGrant::default(), None))
    }
}
