package workload

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"time"
)

// ReorderWindow is how many rows a row may stand from its place in the order of
// time. Public traces are logged when a request ends or by several writers, so
// neighbours swap; a thousand rows cover that and bound the memory.
const ReorderWindow = 1024

// ordered sorts a source within ReorderWindow rows and moves its time so that
// the first row comes at 0.
type ordered struct {
	name   string
	in     source
	buffer rowHeap
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
	if len(o.buffer) == 0 {
		return Row{}, o.err
	}
	row := heap.Pop(&o.buffer).(Row)
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
	for o.err == nil && len(o.buffer) <= ReorderWindow {
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
		heap.Push(&o.buffer, row)
	}
	if o.err != nil && !errors.Is(o.err, io.EOF) {
		return o.err
	}
	return nil
}

// rowHeap has the earliest row on top; rows of one time keep the file's order.
type rowHeap []Row

func (h rowHeap) Len() int { return len(h) }
func (h rowHeap) Less(i, j int) bool {
	if h[i].At != h[j].At {
		return h[i].At < h[j].At
	}
	return h[i].Number < h[j].Number
}
func (h rowHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *rowHeap) Push(x any)   { *h = append(*h, x.(Row)) }
func (h *rowHeap) Pop() any {
	old := *h
	row := old[len(old)-1]
	old[len(old)-1] = Row{}
	*h = old[:len(old)-1]
	return row
}
