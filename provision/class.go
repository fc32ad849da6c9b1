package provision

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/service"
)

// Class is what a plan tells replicas apart by: the GPUs that one runs on, and how they are
// paid for. An empty GPU and an empty Capacity stand for any.
type Class struct {
	GPU      string
	GPUs     int // of one replica; 0 with an empty GPU
	Capacity service.CapacityType
}

// ClassOf is the class of what an offering has.
func ClassOf(o Offering) Class { return Class{o.GPU, o.GPUs, o.Capacity} }

// Takes says whether an offering is of a class.
func (c Class) Takes(o Offering) bool {
	return (c.GPU == "" || c.GPU == o.GPU && c.GPUs == o.GPUs) && (c.Capacity == "" || c.Capacity == o.Capacity)
}

// ClassNamed is the class that a plan calls by its GPUs, as in L4 or 8xH100, and by a capacity
// type.
func ClassNamed(gpus, capacity string) Class {
	c := Class{GPU: gpus, GPUs: 1, Capacity: service.CapacityType(capacity)}
	if count, gpu, found := strings.Cut(gpus, "x"); found {
		if n, err := strconv.Atoi(count); err == nil {
			c.GPU, c.GPUs = gpu, n
		}
	}
	if c.GPU == "" {
		c.GPUs = 0
	}
	return c
}

// String names the class for people: spot 8xH100.
func (c Class) String() string {
	gpus := cmp.Or(c.GPU, "any machine")
	if c.GPUs > 1 {
		gpus = fmt.Sprintf("%dx%s", c.GPUs, c.GPU)
	}
	return strings.TrimSpace(string(c.Capacity) + " " + gpus)
}

// Counts is how many replicas are wanted of each class.
type Counts map[Class]int

// Total is how many replicas are wanted of all classes.
func (c Counts) Total() int {
	total := 0
	for _, n := range c {
		total += n
	}
	return total
}

// classes are the classes of counts, in a fixed order: those that say more come first, so
// that a replica is not counted as any where it is of one that is asked for.
func (c Counts) classes() []Class {
	var all []Class
	for class, n := range c {
		if n > 0 {
			all = append(all, class)
		}
	}
	slices.SortFunc(all, func(a, b Class) int {
		return cmp.Or(
			cmp.Compare(b.GPU, a.GPU), cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(b.Capacity, a.Capacity),
		)
	})
	return all
}

// Fit says which of the replicas that exist are of the classes wanted: matched, by the index
// of each, says of which; missing are those of each class that do not exist yet, in a fixed
// order. A replica of which it is not known what it runs on is of Class{} alone.
func (c Counts) Fit(exist []Object) (matched map[int]Class, missing []Class) {
	matched = map[int]Class{}
	for _, class := range c.classes() {
		left := c[class]
		for i, o := range exist {
			_, taken := matched[i]
			of := class == Class{} || o.Offering != nil && class.Takes(*o.Offering)
			if left > 0 && !taken && of {
				matched[i] = class
				left--
			}
		}
		for range left {
			missing = append(missing, class)
		}
	}
	return matched, missing
}
