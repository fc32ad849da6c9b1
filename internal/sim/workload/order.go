package workload

import (
	"errors"
	"fmt"
	"io"
	"sort"
	"time"
)

// ReorderWindow is how many rows a row may stand from its place in the order of
// time. Public traces are logged when a request ends or by several writers, so
// neighbours swap; a thousand rows cover that and bound the memory.
const ReorderWindow = 1024

// ordered sorts a source within ReorderWindow rows and moves its time so that
// the first row comes at 0.
type ordered struct {
	name string
	in   source
	// buffer is sorted from head on: by time, then by the file's order. Most rows
	// come in order and are appended, which a heap would not make use of.
	buffer []Row
	head   int
	err    error // from in, given when the buffer is empty
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

func (o *ordered) next() (Row, error) {
	if err := o.fill(); err != nil {
		return Row{}, err
	}
	if o.head == len(o.buffer) {
		return Row{}, o.err
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

// fill reads ahead until the window is full. A row that comes too late for its
// place, and any error but the end, is reported at once.
func (o *ordered) fill() error {
	for o.err == nil && len(o.buffer)-o.head <= ReorderWindow {
		row, err := o.in.next()
		if err != nil {
			o.err = err
			break
		}
		if o.began && row.At < o.last {
			o.err = fmt.Errorf("reading %s:%d: the row is %s too early for its place: rows may stand at most %d rows out of order",
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

// insert puts a row behind those of its time and before the later ones.
func (o *ordered) insert(row Row) {
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
