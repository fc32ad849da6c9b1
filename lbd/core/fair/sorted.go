package fair

// sorted keeps elements in order. It is a treap whose nodes are embedded in the elements and linked
// to their neighbours: adding and removing are O(log n), first, last and next are O(1), and no
// method allocates. The order of an element must not change while it is in the tree.
type sorted[T any] struct {
	node        func(*T) *node[T]
	before      func(a, b *T) bool
	root        *T
	head        *T
	tail        *T
	randomState uint64
}

// node is the part of an element that one sorted tree uses.
type node[T any] struct {
	parent, left, right *T
	prev, next          *T
	priority            uint64 // never above the parent's
}

// random returns the next number of a fixed pseudorandom sequence (splitmix64).
func (s *sorted[T]) random() uint64 {
	s.randomState += 0x9e3779b97f4a7c15
	z := s.randomState
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// addItem adds x, which must not be in the tree.
func (s *sorted[T]) addItem(x *T) {
	n := s.node(x)
	*n = node[T]{priority: s.random()}
	at := &s.root
	for *at != nil {
		n.parent = *at
		if p := s.node(*at); s.before(x, *at) {
			n.next = *at
			at = &p.left
		} else {
			n.prev = *at
			at = &p.right
		}
	}
	*at = x
	s.link(n.prev, x)
	s.link(x, n.next)
	for n.parent != nil && s.node(n.parent).priority < n.priority {
		s.rotateUp(x)
	}
}

// removeItem removes x, which must be in the tree.
func (s *sorted[T]) removeItem(x *T) {
	n := s.node(x)
	for n.left != nil && n.right != nil {
		if s.node(n.left).priority > s.node(n.right).priority {
			s.rotateUp(n.left)
		} else {
			s.rotateUp(n.right)
		}
	}
	child := n.left
	if child == nil {
		child = n.right
	}
	s.replaceChild(n.parent, x, child)
	s.link(n.prev, n.next)
	*n = node[T]{}
}

// link makes b the successor of a; nil marks the end on that side.
func (s *sorted[T]) link(a, b *T) {
	if a == nil {
		s.head = b
	} else {
		s.node(a).next = b
	}
	if b == nil {
		s.tail = a
	} else {
		s.node(b).prev = a
	}
}

// rotateUp rotates x and its parent, so that the parent becomes a child of x.
func (s *sorted[T]) rotateUp(x *T) {
	n := s.node(x)
	parent := n.parent
	p := s.node(parent)
	s.replaceChild(p.parent, parent, x)
	if p.left == x {
		p.left = n.right
		if n.right != nil {
			s.node(n.right).parent = parent
		}
		n.right = parent
	} else {
		p.right = n.left
		if n.left != nil {
			s.node(n.left).parent = parent
		}
		n.left = parent
	}
	p.parent = x
}

// replaceChild replaces the child old of up by x; up = nil is above the root.
func (s *sorted[T]) replaceChild(up, old, x *T) {
	switch {
	case up == nil:
		s.root = x
	case s.node(up).left == old:
		s.node(up).left = x
	default:
		s.node(up).right = x
	}
	if x != nil {
		s.node(x).parent = up
	}
}

// first returns the first element; nil if there is none.
func (s *sorted[T]) first() *T { return s.head }

// last returns the last element; nil if there is none.
func (s *sorted[T]) last() *T { return s.tail }

// nextItem returns the element after x; nil after the last.
func (s *sorted[T]) nextItem(x *T) *T { return s.node(x).next }
