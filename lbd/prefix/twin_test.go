package prefix

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// twin is the reference tree: a list of keys per target and a list of responses, never full.
type twin struct {
	keys  map[int][]Key
	marks []response
}

type response struct {
	key   Key
	start time.Duration
}

func newTwin() *twin { return &twin{keys: map[int][]Key{}} }

func (w *twin) insert(key Key, target int) {
	if len(key) > 0 {
		w.keys[target] = append(w.keys[target], key)
	}
}

func (w *twin) insertResponse(key Key, target int, start time.Duration) {
	w.insert(key, target)
	w.marks = slices.DeleteFunc(w.marks, func(a response) bool { return slices.Equal(a.key, key) })
	if len(key) > 0 {
		w.marks = append(w.marks, response{key, start})
	}
}

func (w *twin) remove(target int) {
	delete(w.keys, target)
	w.dropMarks()
}

// dropMarks removes the marks that no target has.
func (w *twin) dropMarks() {
	w.marks = slices.DeleteFunc(w.marks, func(a response) bool {
		for t := range w.keys {
			if w.match(a.key, t) == a.key.Bytes() {
				return false
			}
		}
		return true
	})
}

// removeBelow shortens every key of target that has more than keep leading blocks in common with key.
func (w *twin) removeBelow(key Key, keep, target int) {
	if keep >= len(key) {
		return
	}
	for i, k := range w.keys[target] {
		if alike(k, key) > keep {
			w.keys[target][i] = k[:keep]
		}
	}
	w.dropMarks()
}

func (w *twin) match(key Key, target int) int {
	best := 0
	for _, k := range w.keys[target] {
		best = max(best, alike(k, key))
	}
	return best * BlockBytes
}

// responsesOn returns the marks along the first blocks of key, the deepest last.
func (w *twin) responsesOn(key Key, blocks int) (found []response) {
	for _, a := range w.marks {
		if len(a.key) <= blocks && alike(a.key, key) == len(a.key) {
			found = append(found, a)
		}
	}
	slices.SortFunc(found, func(a, b response) int { return len(a.key) - len(b.key) })
	return found
}

func alike(a, b Key) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// operation is one thing done to a tree.
type operation struct {
	kind   byte // i: insert, a: insert a response, m: match, r: remove the target, l: release the owner, b: remove below half of the key
	key    Key
	target int
	start  time.Duration
	owner  int
}

const targetsOfTests = 1024

func (o operation) String() string {
	return fmt.Sprintf("%c %d blocks, target %d, start %s, owner %d", o.kind, len(o.key), o.target, o.start, o.owner)
}

func (o operation) do(t *Tree, out []int) (found Found) {
	switch o.kind {
	case 'i':
		t.InsertFor(o.owner, o.key, o.target)
	case 'a':
		t.InsertResponseFor(o.owner, o.key, o.target, o.start)
	case 'l':
		t.Release(o.owner)
	case 'r':
		t.RemoveTarget(o.target)
	case 'b':
		t.RemoveBelow(o.key, len(o.key)/2, o.target)
	case 'm':
		found = t.Match(o.key, out)
	}
	return found
}

func (o operation) doDumb(w *twin) {
	switch o.kind {
	case 'i':
		w.insert(o.key, o.target)
	case 'a':
		w.insertResponse(o.key, o.target, o.start)
	case 'r':
		w.remove(o.target)
	case 'b':
		w.removeBelow(o.key, len(o.key)/2, o.target)
	}
}

// trial runs operations on a tree, on one that walks from the root each time, and on the reference,
// and compares them.
type trial struct {
	t         fataler
	tree      *Tree
	forgetful *Tree
	dumb      *twin
	full      bool // whether the trees may have to evict
	out, also []int
}

func newTrial(t fataler, maxBytes int, order Order) *trial {
	return &trial{
		t: t, tree: NewTreeWithOrder(maxBytes, order), forgetful: NewTreeWithOrder(maxBytes, order),
		dumb: newTwin(), full: maxBytes < 1<<20,
		out: make([]int, targetsOfTests), also: make([]int, targetsOfTests),
	}
}

func (r *trial) step(o operation) {
	found := o.do(r.tree, r.out)
	r.forgetful.walked.known = false
	if again := o.do(r.forgetful, r.also); again != found || !slices.Equal(r.out, r.also) {
		r.t.Fatalf("%v: %+v, from the root %+v", o, found, again)
	}
	o.doDumb(r.dumb)
	check(r.t, r.tree)
	if a, b := r.tree, r.forgetful; a.Bytes() != b.Bytes() || a.Nodes() != b.Nodes() || !slices.Equal(a.cachedBytes, b.cachedBytes) {
		r.t.Fatalf("%v: %d bytes in %d nodes, from the root %d in %d", o, a.Bytes(), a.Nodes(), b.Bytes(), b.Nodes())
	}
	switch o.kind {
	case 'm':
		r.compare(o, found)
	case 'i', 'a':
		r.arrived(o)
	}
}

// compare compares a match with the reference. A full tree may have shorter matches, but never
// longer ones.
func (r *trial) compare(o operation, found Found) {
	longest := 0
	for target, got := range r.out {
		want := r.dumb.match(o.key, target)
		if got > want || got < want && !r.full {
			r.t.Fatalf("%v: target %d has %d bytes, want %d", o, target, got, want)
		}
		longest = max(longest, got)
	}
	if found.Bytes != longest {
		r.t.Fatalf("%v: %d bytes matched, the longest of the targets is %d", o, found.Bytes, longest)
	}
	marks := r.dumb.responsesOn(o.key, longest/BlockBytes)
	if !r.full {
		marks = marks[max(0, len(marks)-1):]
	}
	known := slices.ContainsFunc(marks, func(a response) bool { return a.start == found.SessionStart })
	if found.AfterResponse && !known || !found.AfterResponse && (found.SessionStart != 0 || len(marks) > 0 && !r.full) {
		r.t.Fatalf("%v: found %+v, want one of %v", o, found, marks)
	}
}

// arrived checks that the latest insert is present, unless its own path exceeds the bound. By age
// of insertion, a repeated prefix may be the next to be evicted.
func (r *trial) arrived(o operation) {
	if r.tree.order == EarliestInserted && r.full {
		return
	}
	r.tree.Match(o.key, r.out)
	ofOne := r.tree.ownerOfNode == nil // otherwise see TestOwnersKeepTheirShare
	if ofOne && r.out[o.target] != o.key.Bytes() && r.tree.Nodes() > len(r.tree.walked.path) {
		r.t.Fatalf("%v: only %d bytes are there", o, r.out[o.target])
	}
	clear(r.out)
	clear(r.also)
	if r.full && r.tree.Bytes() > r.tree.maxBytes && r.tree.Nodes() > 1 {
		r.t.Fatalf("%v: %d bytes, the bound is %d", o, r.tree.Bytes(), r.tree.maxBytes)
	}
}

// chained converts letters to a key like a hasher: every hash represents all letters up to its own.
func chained(letters []byte) Key {
	key, chain := make(Key, len(letters)), uint64(0)
	for i, l := range letters {
		chain = scramble(chain*31 + uint64(l) + 1)
		key[i] = chain
	}
	return key
}

// stretch repeats every letter.
func stretch(letters []byte, times int) (long []byte) {
	for _, l := range letters {
		long = append(long, slices.Repeat([]byte{l}, times)...)
	}
	return long
}

func drawOperation(rt *rapid.T) operation {
	return operation{
		kind:   rapid.SampledFrom([]byte("iiaammmrlbb")).Draw(rt, "operation"),
		owner:  rapid.SampledFrom([]int{0, 0, 0, 1, 2, 300}).Draw(rt, "owner"),
		key:    chained(stretch(rapid.SliceOfN(rapid.SampledFrom([]byte("ab")), 0, 9).Draw(rt, "key"), rapid.SampledFrom([]int{1, 1, 1, 150}).Draw(rt, "stretch"))),
		target: rapid.SampledFrom([]int{0, 1, 2, 63, 64, 130, 1023}).Draw(rt, "target"),
		start:  time.Duration(rapid.IntRange(-3, 9).Draw(rt, "start")),
	}
}

func TestTreeMatchesReference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newTrial(rt, 1<<30, drawOrder(rt))
		for range rapid.IntRange(1, 40).Draw(rt, "operations") {
			o := drawOperation(rt)
			r.step(o)
			if o.kind == 'm' && rapid.Bool().Draw(rt, "and inserted") {
				for _, kind := range []byte("ia") { // the operations of a request
					o.kind = kind
					r.step(o)
					o.key = append(o.key[:len(o.key):len(o.key)], scramble(uint64(len(o.key))+1))
				}
			}
		}
		for target := range targetsOfTests {
			r.tree.RemoveTarget(target)
		}
		if r.tree.Nodes() != 0 || r.tree.Bytes() != 0 {
			rt.Fatalf("all targets removed, but %d nodes and %d bytes are left", r.tree.Nodes(), r.tree.Bytes())
		}
	})
}

func TestFullTreeIsSubsetOfReference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newTrial(rt, rapid.SampledFrom([]int{1, 3, 6, 12, 30, 200, 1000}).Draw(rt, "room")*nodeBytes, drawOrder(rt))
		for range rapid.IntRange(1, 60).Draw(rt, "operations") {
			r.step(drawOperation(rt))
		}
	})
}

func drawOrder(rt *rapid.T) Order {
	return rapid.SampledFrom([]Order{LeastRecent, EarliestInserted}).Draw(rt, "order")
}

// FuzzTree reads operations from bytes: one for the capacity, the order and the owners, then for
// each operation its kind and target, how many letters its key has, and the letters. A quarter of
// the keys extend the previous one, a quarter are so long that their edges fill chunks.
func FuzzTree(f *testing.F) {
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		room := 1 << 30
		if n := int(data[0] >> 1); n > 0 {
			room = 16 * n * n
		}
		r, owners := newTrial(t, room, Order(data[0]&1)), 1+int(data[0]>>1&3)
		var last []byte
		data = data[1:min(len(data), 600)]
		for len(data) >= 3 {
			kind, target, size := data[0], data[1], int(data[2]&31)
			letters := slices.Clone(data[3:min(len(data), 3+size)])
			data = data[3+len(letters):]
			switch kind >> 6 {
			case 0:
				letters = append(last[:len(last):len(last)], letters...)
			case 1:
				letters = stretch(letters, 90)
			}
			last = letters[:min(len(letters), 4*maxEdge)]
			r.step(operation{
				kind: "iambiabr"[kind%8], key: chained(letters), owner: int(kind>>3) % owners,
				target: int(target) * 4 % targetsOfTests, start: time.Duration(kind >> 3),
			})
		}
	})
}
