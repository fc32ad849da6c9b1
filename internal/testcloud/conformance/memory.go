package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"skyserve/internal/service"
	"skyserve/provision"
)

// ErrCrash is the error of every call of a Memory after its crash.
var ErrCrash = errors.New("crashed")

// Memory is an in-memory cloud: the simplest conforming provider. It can simulate a lack of capacity, and
// crashes.
type Memory struct {
	// RegionOfferings contains the offerings of each region.
	RegionOfferings map[service.Region]provision.Offerings
	// CapacityError returns the error for an offering without capacity; nil = all have capacity.
	CapacityError func(provision.Offering) *provision.CapacityError
	// CrashAt is the number of the changing call that crashes, from 1; 0 = none. It crashes before the change
	// or, with CrashAfterEffect, after it.
	CrashAt          int
	CrashAfterEffect bool

	mu      sync.Mutex
	objects []provision.Object
	handles int
	calls   int
}

// Objects returns all objects.
func (m *Memory) Objects() []provision.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.objects)
}

// CountChanges returns the number of calls that changed something, or attempted to.
func (m *Memory) CountChanges() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

// ChangeObject changes an object without a call of the provider; a nil function removes it.
func (m *Memory) ChangeObject(id string, change func(*provision.Object)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.objects {
		if m.objects[i].ID == id {
			if change == nil {
				m.objects = slices.Delete(m.objects, i, i+1)
			} else {
				change(&m.objects[i])
			}
			return
		}
	}
}

// RestartAfterCrash ends a crash.
func (m *Memory) RestartAfterCrash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.CrashAt, m.calls = 0, 0
}

// step executes one change, unless the memory has crashed or the context has ended.
func (m *Memory) step(ctx context.Context, change func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	crashes := m.CrashAt > 0 && m.calls >= m.CrashAt
	if !crashes || m.CrashAfterEffect && m.calls == m.CrashAt {
		if err := change(); err != nil && !crashes {
			return err
		}
	}
	if crashes {
		return ErrCrash
	}
	return nil
}

// Offerings returns the configured offerings of a region.
func (m *Memory) Offerings(_ context.Context, region service.Region) (provision.Offerings, error) {
	return m.RegionOfferings[region], nil
}

// List returns the objects of a service; "" = of all.
func (m *Memory) List(_ context.Context, name string) ([]provision.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.objects), func(o provision.Object) bool { return name != "" && o.Service != name }), nil
}

// Launch creates an object, or returns the existing one.
func (m *Memory) Launch(ctx context.Context, w provision.Desired) (o provision.Object, err error) {
	err = m.step(ctx, func() error {
		o = provision.Object{
			ID: w.ID, Kind: w.Kind, Service: w.Service, Owner: w.Owner, Region: w.Region, SpecHash: w.SpecHash, ImmutableHash: w.ImmutableHash, BuildHash: w.BuildHash,
			Address: w.Address, Admin: w.Admin, Labels: w.Labels, CostPerHour: w.CostPerHour,
		}
		if len(w.Offerings) > 0 {
			o.Offering = &w.Offerings[0]
			if m.CapacityError != nil {
				if refused := m.CapacityError(w.Offerings[0]); refused != nil {
					return refused
				}
			}
		}
		for i, have := range m.objects {
			if have.ID != w.ID || have.Service != w.Service || have.Kind != w.Kind || have.TerminatedReason != "" {
				continue
			}
			o.Handle = have.Handle
			if have.SpecHash == w.SpecHash {
				o = have
				return nil
			}
			if w.Kind == provision.KindFirewall || w.Kind == provision.KindIdentity {
				m.objects[i] = o
				return nil
			}
		}
		m.objects = slices.DeleteFunc(m.objects, func(have provision.Object) bool {
			return have.ID == w.ID && have.Service == w.Service && have.TerminatedReason != ""
		})
		m.handles++
		o.Handle = fmt.Sprintf("m-%d", m.handles)
		m.objects = append(m.objects, o)
		return nil
	})
	return o, err
}

// Terminate removes an object.
func (m *Memory) Terminate(ctx context.Context, o provision.Object) error {
	return m.step(ctx, func() error {
		m.objects = slices.DeleteFunc(m.objects, func(have provision.Object) bool { return have.Handle == o.Handle })
		return nil
	})
}
