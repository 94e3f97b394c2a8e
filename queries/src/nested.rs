//! Structs inside of lists as an earlier version wrote them, with the fields that were added since.
//!
//! Invariant: fields that were stored keep their values; those added hold NULL where the table allows it, else zero or the empty text. What
//! has fields the table does not know is left as it is. Cost: O(values of the lists that are missing fields). No state.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, ListArray, RecordBatch, StructArray},
    datatypes::{DataType, Field, FieldRef, Schema},
    error::ArrowError,
};

use crate::live_table::blank;

/// The batch with whole structs in its lists.
pub(crate) fn deepen(table: &Schema, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let stored = batch.schema();
    let wanted: Vec<Option<&FieldRef>> = stored.fields().iter().map(|field| missing(table, field)).collect();
    if wanted.iter().all(Option::is_none) {
        return Ok(batch);
    }
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for ((field, column), item) in stored.fields().iter().zip(batch.columns()).zip(wanted) {
        match item {
            None => {
                fields.push(field.clone());
                columns.push(column.clone());
            }
            Some(item) => {
                let list = DataType::List(item.clone());
                fields.push(Arc::new(Field::new(field.name(), list, field.is_nullable())));
                columns.push(whole(column.as_list::<i32>(), item)?);
            }
        }
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
}

/// The table's item of a list of structs whose stored item lacks some of its fields.
fn missing<'a>(table: &'a Schema, stored: &Field) -> Option<&'a FieldRef> {
    let item = match table.field_with_name(stored.name()).ok()?.data_type() {
        DataType::List(item) => item,
        _ => return None,
    };
    let (DataType::Struct(wanted), DataType::List(held)) = (item.data_type(), stored.data_type()) else { return None };
    let DataType::Struct(held) = held.data_type() else { return None };
    let is_known = held.iter().all(|field| wanted.find(field.name()).is_some());
    (held.len() < wanted.len() && is_known).then_some(item)
}

fn whole(list: &ListArray, item: &FieldRef) -> Result<ArrayRef, ArrowError> {
    let DataType::Struct(wanted) = item.data_type() else {
        return Err(ArrowError::SchemaError(format!("{} is no struct", item.name())));
    };
    let values: &StructArray = list.values().as_struct();
    let column = |field: &FieldRef| match values.column_by_name(field.name()) {
        Some(column) => Ok(column.clone()),
        None => blank(field, values.len()),
    };
    let columns = wanted.iter().map(column).collect::<Result<Vec<_>, _>>()?;
    let values = StructArray::try_new(wanted.clone(), columns, values.nulls().cloned())?;
    let lists = ListArray::try_new(item.clone(), list.offsets().clone(), Arc::new(values), list.nulls().cloned())?;
    Ok(Arc::new(lists))
}
