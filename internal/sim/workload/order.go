package workload

import (
	"errors"
	"fmt"
	"io"
	"sort"
	"time"
)

// ReorderWindow is the maximum number of rows that a row may be out of order. Public traces are logged
// when a request ends or by several writers, so neighbours swap; a thousand rows cover that and limit
// the memory.
const ReorderWindow = 1024

// ordered sorts a source within ReorderWindow rows and shifts its times so that the first row is at 0.
type ordered struct {
	name string
	in   source
	// buffer is sorted from head on, by time and then file order. Most rows are in order and are
	// appended, faster than with a heap.
	buffer []TraceRow
	head   int
	err    error // from in, returned when the buffer is empty
	began  bool
	origin time.Duration
	last   time.Duration
}

// sorted wraps a source; nil stays nil.
func sorted(name string, in source) source {
	if in == nil {
		return nil
	}
	return &ordered{name: name, in: in}
}

func (o *ordered) next() (TraceRow, error) {
	if err := o.fill(); err != nil {
		return TraceRow{}, err
	}
	if o.head == len(o.buffer) {
		return TraceRow{}, o.err
	}
	row := o.buffer[o.head]
	o.head++
	if !o.began {
		o.began, o.origin = true, row.At
	}
	o.last = row.At
	row.At -= o.origin
	return row, nil
}

// fill reads ahead until the window is full. A row that is too far out of order, and any error except
// the end, is returned at once.
func (o *ordered) fill() error {
	for o.err == nil && len(o.buffer)-o.head <= ReorderWindow {
		row, err := o.in.next()
		if err != nil {
			o.err = err
			break
		}
		if o.began && row.At < o.last {
			o.err = fmt.Errorf("reading %s:%d: the row is %s too early for its position: rows may be at most %d rows out of order",
				o.name, row.Line, o.last-row.At, ReorderWindow)
			break
		}
		o.insert(row)
	}
	if o.err != nil && !errors.Is(o.err, io.EOF) {
		return o.err
	}
	return nil
}

// insert inserts a row after those with the same time.
func (o *ordered) insert(row TraceRow) {
	if len(o.buffer) == cap(o.buffer) && o.head > 0 {
		n := copy(o.buffer, o.buffer[o.head:])
		clear(o.buffer[n:])
		o.buffer, o.head = o.buffer[:n], 0
	}
	waiting := o.buffer[o.head:]
	at := o.head + sort.Search(len(waiting), func(i int) bool { return waiting[i].At > row.At })
	o.buffer = append(o.buffer, row)
	if last := len(o.buffer) - 1; at < last {
		copy(o.buffer[at+1:], o.buffer[at:last])
		o.buffer[at] = row
	}
}
