package provision

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/service"
)

// ReplicaClass is a group of interchangeable replicas in a plan: the GPUs of one replica and its capacity
// type. An empty GPU and an empty Capacity match any.
type ReplicaClass struct {
	GPU      string
	GPUs     int // per replica; 0 with an empty GPU
	Capacity service.CapacityType
}

// ReplicaClassOf returns the class of an offering.
func ReplicaClassOf(o Offering) ReplicaClass { return ReplicaClass{o.GPU, o.GPUs, o.Capacity} }

// Matches reports whether o belongs to the class.
func (c ReplicaClass) Matches(o Offering) bool {
	return (c.GPU == "" || c.GPU == o.GPU && c.GPUs == o.GPUs) && (c.Capacity == "" || c.Capacity == o.Capacity)
}

// ParseReplicaClass returns the class with the GPUs in the notation of plans, such as L4 or 8xH100, and a capacity
// type.
func ParseReplicaClass(gpus, capacity string) ReplicaClass {
	c := ReplicaClass{GPU: gpus, GPUs: 1, Capacity: service.CapacityType(capacity)}
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

// String formats the class for display: spot 8xH100.
func (c ReplicaClass) String() string {
	gpus := cmp.Or(c.GPU, "any machine")
	if c.GPUs > 1 {
		gpus = fmt.Sprintf("%dx%s", c.GPUs, c.GPU)
	}
	return strings.TrimSpace(string(c.Capacity) + " " + gpus)
}

// ClassCounts is the desired number of replicas of each class.
type ClassCounts map[ReplicaClass]int

// Total returns the desired number of replicas of all classes.
func (c ClassCounts) Total() int {
	total := 0
	for _, n := range c {
		total += n
	}
	return total
}

// sortedClasses returns the classes of c in a fixed order, the most specific first, so that a replica
// counts for its specific class before it counts for a class that matches any.
func (c ClassCounts) sortedClasses() []ReplicaClass {
	var all []ReplicaClass
	for class, n := range c {
		if n > 0 {
			all = append(all, class)
		}
	}
	slices.SortFunc(all, func(a, b ReplicaClass) int {
		return cmp.Or(
			cmp.Compare(b.GPU, a.GPU), cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(b.Capacity, a.Capacity),
		)
	})
	return all
}

// Match matches existing replicas with the desired classes. matched maps the index of a replica to its
// class. missing lists the class of each replica that does not exist yet, in a fixed order. A replica
// whose offering is unknown matches ReplicaClass{} only.
func (c ClassCounts) Match(existing []Object) (matched map[int]ReplicaClass, missing []ReplicaClass) {
	matched = map[int]ReplicaClass{}
	for _, class := range c.sortedClasses() {
		remaining := c[class]
		for i, o := range existing {
			_, used := matched[i]
			fits := class == ReplicaClass{} || o.Offering != nil && class.Matches(*o.Offering)
			if remaining > 0 && !used && fits {
				matched[i] = class
				remaining--
			}
		}
		for range remaining {
			missing = append(missing, class)
		}
	}
	return matched, missing
}
