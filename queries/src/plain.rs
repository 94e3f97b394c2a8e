//! DataFusion called directly, over tables as they are at one moment: what the engine is compared with (SPEC E2). No limits, nothing refused.

use datafusion::{error::DataFusionError, prelude::SessionContext};

use crate::{
    LiveTables, QueryResult, SqlError,
    sql_error::{LimitOf, classify},
};

/// See the file's header. Planning starts from a context that is there already.
pub struct PlainTables(SessionContext);

impl PlainTables {
    pub fn new(tables: &LiveTables) -> Result<PlainTables, SqlError> {
        let context = SessionContext::new();
        tables.register(&context).map_err(failed)?;
        Ok(PlainTables(context))
    }

    pub async fn answer(&self, sql: &str) -> Result<QueryResult, SqlError> {
        let frame = self.0.sql(sql).await.map_err(failed)?;
        let schema = frame.schema().as_arrow().clone().into();
        Ok(QueryResult { schema, batches: frame.collect().await.map_err(failed)? })
    }
}

fn failed(error: DataFusionError) -> SqlError {
    classify(error, (usize::MAX, LimitOf::Server))
}
