package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Wanted is what a plan or an operator decided about replicas within what
// service.yaml allows. It is kept in the state directory beside that file, so
// that bringing the service up again does not undo it. The zero value leaves
// everything to service.yaml: the least replicas of each model and region, all of
// them serving.
type Wanted struct {
	// Groups are those that differ from that.
	Groups []Group `json:"groups"`
	// Drained are the ids of replicas that exist and are sent nothing, sorted.
	Drained []string `json:"drained"`
	// Donated are the replicas that are lent, by id.
	Donated []Donated `json:"donated,omitempty"`
}

// Group is the replicas of one model in one local region.
type Group struct {
	Model  string         `json:"model"`
	Region service.Region `json:"region"`
	// Numbers are those in the replicas' ids, ascending, from 0.
	Numbers []int `json:"numbers"`
}

// BoundsError is a count of replicas that service.yaml does not allow.
type BoundsError struct {
	Model  string
	Region service.Region
	Count  int // what was asked for
	service.Bounds
}

// Error says what was asked for and what is allowed.
func (e *BoundsError) Error() string {
	return fmt.Sprintf("%s in %s: replicas must be %d to %d (replicas.min and max of service.yaml), got %d", e.Model, e.Region, e.Min, e.Max, e.Count)
}

// ErrNotLocal says that a region's replicas are no processes of this machine, so
// that none can be added or removed.
var ErrNotLocal = errors.New("its machines are listed in service.yaml: none can be added or removed, only drained")

// Wanted reads what was decided; nothing where no decision is kept. A file that
// cannot be read is an error: taking it for none would stop replicas.
func (s Service) Wanted() (Wanted, error) {
	var w Wanted
	data, err := os.ReadFile(s.configFile(fileWanted))
	if errors.Is(err, fs.ErrNotExist) {
		return w, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &w)
	}
	if err != nil {
		return Wanted{}, fmt.Errorf("reading the wanted replicas of %s in %s: %w", s.name, s.configFile(fileWanted), err)
	}
	return w, nil
}

// Numbers are the numbers of a model's replicas in a local region, ascending.
// Where they are fewer or more than service.yaml allows by now, the lowest free
// ones are added, or the highest left out.
func (w Wanted) Numbers(spec *service.Spec, model string, region service.Region) []int {
	b := spec.BoundsFor(model, region)
	for _, g := range w.Groups {
		if g.Model == model && g.Region == region {
			return fill(g.Numbers, max(b.Min, min(len(distinct(g.Numbers)), b.Max)))
		}
	}
	return fill(nil, b.Min)
}

// distinct are the different numbers from 0 on, ascending.
func distinct(numbers []int) []int {
	out := slices.DeleteFunc(slices.Clone(numbers), func(i int) bool { return i < 0 })
	slices.Sort(out)
	return slices.Compact(out)
}

// fill is the distinct numbers with the lowest free ones added, or the highest left
// out, so that there are n.
func fill(numbers []int, n int) []int {
	out := distinct(numbers)
	if len(out) > n {
		return out[:n]
	}
	for i := 0; len(out) < n; i++ {
		if at, has := slices.BinarySearch(out, i); !has {
			out = slices.Insert(out, at, i)
		}
	}
	return out
}

// IDs are the ids of all replicas of local regions.
func (w Wanted) IDs(spec *service.Spec) []string {
	var ids []string
	for _, r := range spec.Regions {
		for i := range spec.Models {
			ids = append(ids, w.IDsOf(spec, spec.Models[i].Name, r.Name)...)
		}
	}
	return ids
}

// WithCount is w with another count of a model's serving replicas in a local
// region: donated ones are taken back before the lowest free numbers are added; the
// highest are removed. It fails with *BoundsError beyond service.yaml's bounds and
// ErrNotLocal elsewhere.
func (w Wanted) WithCount(spec *service.Spec, model string, region service.Region, n int) (Wanted, error) {
	b := spec.BoundsFor(model, region)
	switch {
	case region.Cloud() != service.CloudLocal:
		return w, fmt.Errorf("%s: %w", region, ErrNotLocal)
	case n < b.Min || n > b.Max:
		return w, &BoundsError{model, region, n, b}
	}
	all := w.numbered(spec, model, region)
	var serve, lent []int
	for _, r := range all {
		if w.IsDonated(r.id) {
			lent = append(lent, r.number)
		} else {
			serve = append(serve, r.number)
		}
	}
	if more := n - len(serve); more > 0 {
		w = w.takeBack(w.IDsOf(spec, model, region), more)
		return w.with(spec, Group{model, region, fill(slices.Concat(serve, lent), max(len(all), n))}), nil
	}
	return w.with(spec, Group{model, region, distinct(slices.Concat(lent, fill(serve, n)))}), nil
}

// numbered is a replica of a local region with its number.
type numbered struct {
	id     string
	number int
}

// numbered are a model's replicas in a local region, by their numbers.
func (w Wanted) numbered(spec *service.Spec, model string, region service.Region) []numbered {
	i := slices.IndexFunc(spec.Models, func(m service.Model) bool { return m.Name == model })
	var out []numbered
	for _, n := range w.Numbers(spec, model, region) {
		out = append(out, numbered{provision.ReplicaID(spec, i, region, n), n})
	}
	return out
}

// Without is w without one replica of a local region, by its id; it stays out when
// others are added later. It fails as WithCount does, and with *NoReplicaError.
func (w Wanted) Without(spec *service.Spec, id string) (Wanted, error) {
	model, region, ids, err := w.groupOf(spec, nil, id)
	if err != nil {
		return w, err
	}
	if b, serve := spec.BoundsFor(model, region), len(w.Serving(ids))-1; !w.IsDonated(id) && serve < b.Min {
		return w, &BoundsError{model, region, serve, b}
	}
	var stay []int
	for _, r := range w.numbered(spec, model, region) {
		if r.id != id {
			stay = append(stay, r.number)
		}
	}
	return w.Reclaimed(id).with(spec, Group{model, region, stay}), nil
}

// WithDrained is w with a replica drained, or serving again.
func (w Wanted) WithDrained(id string, drained bool) Wanted {
	w.Drained = slices.DeleteFunc(slices.Clone(w.Drained), func(d string) bool { return d == id })
	if drained {
		w.Drained = append(w.Drained, id)
		slices.Sort(w.Drained)
	}
	return w
}

// with is w with a group replaced, and without what has become void.
func (w Wanted) with(spec *service.Spec, g Group) Wanted {
	w.Groups = slices.DeleteFunc(slices.Clone(w.Groups), func(o Group) bool { return o.Model == g.Model && o.Region == g.Region })
	w.Groups = append(w.Groups, g)
	return w.tidy(spec, nil)
}

// tidy leaves out groups that say what service.yaml says anyway, or of what it
// does not have any more, so that they follow it when it changes; and drained
// replicas that do not exist any more. attached are those that are no process here.
func (w Wanted) tidy(spec *service.Spec, attached []string) Wanted {
	out := Wanted{Groups: []Group{}, Drained: []string{}}
	for _, r := range spec.Regions {
		for i := range spec.Models {
			model := spec.Models[i].Name
			numbers := w.Numbers(spec, model, r.Name)
			if r.Name.Cloud() != service.CloudLocal {
				continue
			}
			if !slices.Equal(numbers, fill(nil, spec.BoundsFor(model, r.Name).Min)) {
				out.Groups = append(out.Groups, Group{model, r.Name, numbers})
			}
		}
	}
	exists := append(w.IDs(spec), attached...)
	for _, id := range w.Drained {
		if attached == nil || slices.Contains(exists, id) {
			out.Drained = append(out.Drained, id)
		}
	}
	out.Donated = w.keptDonated(spec, exists, attached != nil)
	return out
}
