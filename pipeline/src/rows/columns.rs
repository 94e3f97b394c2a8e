//! Rows become columns (DESIGN §3): each field of a row is put into an Arrow builder that its type names.
//!
//! [`Cell`] says which builder a type's values go into, [`Column`] is that builder. `#[macro_rules_derive(columns!)]` on a struct makes
//! its columns of those of its fields, in order; so structs nest, in lists as well. Twin: `serde_arrow`, which reads the rows back and
//! writes the same (`bus::tests::rows`). Rows are put where they arise, several for each request and one with all instances in it, and
//! a visitor of every field by name costs four to five times as much (`bench decide`).
//! Cost: O(fields and items) a row, no allocation while there is room; a column that is taken leaves room for as many rows as it had.

use std::{mem, sync::Arc};

use arrow::{
    array::{
        Array, ArrayBuilder, ArrayRef, AsArray, BooleanBuilder, ListArray, NullBufferBuilder, PrimitiveBuilder,
        RecordBatch, StringBuilder, StructArray, new_empty_array,
    },
    buffer::{NullBuffer, OffsetBuffer},
    datatypes::{
        ArrowPrimitiveType, DataType, Fields, Float32Type, Float64Type, Int64Type, SchemaRef, TimeUnit,
        TimestampMicrosecondType, UInt8Type, UInt32Type, UInt64Type,
    },
    error::ArrowError,
};
use smol_str::SmolStr;

/// A value of one row and one column.
pub trait Cell: Sized {
    type Column: Column;
    /// Bytes of every such value, where all take as many.
    const BYTES: Option<usize> = Some(size_of::<Self>());

    fn put(&self, column: &mut Self::Column);

    /// Bytes that it takes, about: without what says where it is null.
    fn bytes(&self) -> usize {
        Self::BYTES.unwrap_or(0)
    }

    /// The same as each put in turn.
    fn put_all(cells: &[Self], column: &mut Self::Column) {
        cells.iter().for_each(|cell| cell.put(column));
    }
}

/// Values of one column so far.
pub trait Column: Send + 'static {
    /// Without values, with room for so many.
    fn with_room(values: usize) -> Self;

    fn put_null(&mut self);

    /// The values, as `data_type` where it is another reading of the same numbers (a time).
    fn take(&mut self, data_type: &DataType) -> ArrayRef;
}

/// The columns of a struct's fields, in their order.
pub trait Record: Column {
    fn take_arrays(&mut self, fields: &Fields) -> Vec<ArrayRef>;

    /// The rows so far. Errors: the schema has other columns.
    fn take_batch(&mut self, schema: SchemaRef) -> Result<RecordBatch, ArrowError> {
        let arrays = self.take_arrays(schema.fields());
        RecordBatch::try_new(schema, arrays)
    }
}

macro_rules! primitive_cells {
    ($($native:ty => $arrow:ty),*) => {$(
        impl Cell for $native {
            type Column = PrimitiveBuilder<$arrow>;

            fn put(&self, column: &mut Self::Column) {
                column.append_value(*self);
            }

            fn put_all(cells: &[Self], column: &mut Self::Column) {
                column.append_slice(cells);
            }
        }
    )*};
}

primitive_cells!(u8 => UInt8Type, u32 => UInt32Type, u64 => UInt64Type, i64 => Int64Type, f32 => Float32Type, f64 => Float64Type);

impl<T: ArrowPrimitiveType> Column for PrimitiveBuilder<T> {
    fn with_room(values: usize) -> Self {
        PrimitiveBuilder::with_capacity(values)
    }

    fn put_null(&mut self) {
        self.append_null();
    }

    fn take(&mut self, data_type: &DataType) -> ArrayRef {
        let room = self.len();
        let values: ArrayRef = Arc::new(mem::replace(self, Self::with_room(room)).finish());
        match (data_type, values.as_primitive_opt::<Int64Type>()) {
            (DataType::Timestamp(TimeUnit::Microsecond, zone), Some(numbers)) => {
                Arc::new(numbers.reinterpret_cast::<TimestampMicrosecondType>().with_timezone_opt(zone.clone()))
            }
            _ => values,
        }
    }
}

impl Cell for bool {
    type Column = BooleanBuilder;

    fn put(&self, column: &mut BooleanBuilder) {
        column.append_value(*self);
    }
}

impl Column for BooleanBuilder {
    fn with_room(values: usize) -> Self {
        BooleanBuilder::with_capacity(values)
    }

    fn put_null(&mut self) {
        self.append_null();
    }

    fn take(&mut self, _: &DataType) -> ArrayRef {
        let room = self.len();
        Arc::new(mem::replace(self, Self::with_room(room)).finish())
    }
}

macro_rules! text_cells {
    ($($text:ty),*) => {$(
        impl Cell for $text {
            type Column = StringBuilder;
            const BYTES: Option<usize> = None;

            fn bytes(&self) -> usize {
                size_of::<i32>() + self.len()
            }

            fn put(&self, column: &mut StringBuilder) {
                column.append_value(self);
            }
        }
    )*};
}

text_cells!(String, SmolStr);

impl Column for StringBuilder {
    fn with_room(values: usize) -> Self {
        StringBuilder::with_capacity(values, 0)
    }

    fn put_null(&mut self) {
        self.append_null();
    }

    fn take(&mut self, _: &DataType) -> ArrayRef {
        let next = StringBuilder::with_capacity(self.len(), self.values_slice().len());
        Arc::new(mem::replace(self, next).finish())
    }
}

impl<T: Cell> Cell for Option<T> {
    type Column = T::Column;
    const BYTES: Option<usize> = T::BYTES;

    fn bytes(&self) -> usize {
        match (T::BYTES, self) {
            (Some(bytes), _) => bytes,
            (None, Some(value)) => value.bytes(),
            (None, None) => 0,
        }
    }

    fn put(&self, column: &mut T::Column) {
        match self {
            Some(value) => value.put(column),
            None => column.put_null(),
        }
    }
}

/// A list a row.
pub struct Lists<C> {
    /// Items up to the end of each list, after a 0.
    ends: Vec<i32>,
    validity: NullBufferBuilder,
    /// Items of all lists.
    count: usize,
    items: C,
}

impl<T: Cell> Cell for Vec<T> {
    type Column = Lists<T::Column>;
    const BYTES: Option<usize> = None;

    fn bytes(&self) -> usize {
        let items = T::BYTES.map_or_else(|| self.iter().map(T::bytes).sum(), |bytes| bytes * self.len());
        size_of::<i32>() + items
    }

    fn put(&self, lists: &mut Self::Column) {
        T::put_all(self, &mut lists.items);
        lists.count += self.len();
        lists.end();
        lists.validity.append_non_null();
    }
}

impl<C> Lists<C> {
    fn end(&mut self) {
        self.ends.push(i32::try_from(self.count).expect("invariant: the rows of a queue have fewer items in all"));
    }
}

impl<C: Column> Column for Lists<C> {
    fn with_room(lists: usize) -> Self {
        let mut ends = Vec::with_capacity(lists + 1);
        ends.push(0);
        Lists { ends, validity: NullBufferBuilder::new(lists), count: 0, items: C::with_room(0) }
    }

    fn put_null(&mut self) {
        self.end();
        self.validity.append_null();
    }

    fn take(&mut self, data_type: &DataType) -> ArrayRef {
        let DataType::List(item) = data_type else { return new_empty_array(data_type) };
        let items = self.items.take(item.data_type());
        let (lists, count) = (self.ends.len() - 1, mem::take(&mut self.count));
        debug_assert_eq!(count, items.len());
        let mut next = Vec::with_capacity(lists + 1);
        next.push(0);
        let ends = OffsetBuffer::new(mem::replace(&mut self.ends, next).into());
        Arc::new(ListArray::new(item.clone(), ends, items, self.validity.finish()))
    }
}

/// Structs of the arrays that `arrays` makes for their fields.
pub(super) fn structs(
    data_type: &DataType,
    arrays: impl FnOnce(&Fields) -> Vec<ArrayRef>,
    validity: Option<NullBuffer>,
) -> ArrayRef {
    let DataType::Struct(fields) = data_type else { return new_empty_array(data_type) };
    Arc::new(StructArray::new(fields.clone(), arrays(fields), validity))
}

/// `None` if one is.
pub(super) const fn sum(parts: &[Option<usize>]) -> Option<usize> {
    let (mut sum, mut place) = (0, 0);
    while place < parts.len() {
        match parts[place] {
            Some(part) => sum += part,
            None => return None,
        }
        place += 1;
    }
    Some(sum)
}

/// Makes a struct a [`Cell`] whose column is a [`Record`].
macro_rules! columns {
    ($(#[$_struct:meta])* pub struct $row:ident { $($(#[$_field:meta])* pub $field:ident: $type:ty),* $(,)? }) => {
        const _: () = {
            use $crate::rows::columns::{Cell, Column, Record, structs, sum};

            pub struct Columns {
                $($field: <$type as Cell>::Column,)*
                validity: arrow::array::NullBufferBuilder,
            }

            impl Cell for $row {
                type Column = Columns;
                const BYTES: Option<usize> = sum(&[$(<$type as Cell>::BYTES),*]);

                fn bytes(&self) -> usize {
                    Self::BYTES.unwrap_or_else(|| 0 $(+ self.$field.bytes())*)
                }

                fn put(&self, columns: &mut Columns) {
                    $(self.$field.put(&mut columns.$field);)*
                    columns.validity.append_non_null();
                }

                // Column by column, so that each is found once.
                fn put_all(cells: &[Self], columns: &mut Columns) {
                    $(cells.iter().for_each(|cell| cell.$field.put(&mut columns.$field));)*
                    columns.validity.append_n_non_nulls(cells.len());
                }
            }

            impl Column for Columns {
                fn with_room(rows: usize) -> Self {
                    Columns {
                        $($field: Column::with_room(rows),)*
                        validity: arrow::array::NullBufferBuilder::new(rows),
                    }
                }

                fn put_null(&mut self) {
                    $(self.$field.put_null();)*
                    self.validity.append_null();
                }

                fn take(&mut self, data_type: &arrow::datatypes::DataType) -> arrow::array::ArrayRef {
                    let validity = self.validity.finish();
                    structs(data_type, |fields| self.take_arrays(fields), validity)
                }
            }

            impl Record for Columns {
                fn take_arrays(&mut self, fields: &arrow::datatypes::Fields) -> Vec<arrow::array::ArrayRef> {
                    let none = arrow::datatypes::DataType::Null;
                    let mut types = fields.iter().map(|field| field.data_type());
                    self.validity.finish();
                    vec![$(self.$field.take(types.next().unwrap_or(&none))),*]
                }
            }
        };
    };
}
pub(super) use columns;
