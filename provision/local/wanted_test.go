package local

import (
	"errors"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
)

const us, eu = service.Region("local/us"), service.Region("local/eu")

func specOf(t *testing.T, text string) *service.Spec {
	t.Helper()
	spec, err := service.Parse("service.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// us has 3 to 5 replicas of Big-Model, eu 1 to 5.
func TestNumbersKeepToTheBounds(t *testing.T) {
	spec := specOf(t, twoRegions)
	tests := []struct {
		name    string
		numbers []int // nil = nothing is decided
		want    []int
	}{
		{"nothing is decided", nil, []int{0, 1, 2}},
		{"as decided", []int{0, 1, 2, 3}, []int{0, 1, 2, 3}},
		{"with a gap", []int{0, 2, 3}, []int{0, 2, 3}},
		{"fewer than allowed", []int{4}, []int{0, 1, 4}},
		{"more than allowed", []int{0, 1, 2, 3, 4, 5, 6}, []int{0, 1, 2, 3, 4}},
		{"a file that somebody edited", []int{3, 1, 1, -2, 3}, []int{0, 1, 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var w Wanted
			if tt.numbers != nil {
				w.Groups = []Group{{"org/Big-Model", us, tt.numbers}}
			}
			if got := w.Numbers(spec, "org/Big-Model", us); len(got) < 3 || !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestCountsWithinTheBoundsOnly(t *testing.T) {
	spec := specOf(t, twoRegions)
	for n, allowed := range map[int]bool{2: false, 3: true, 5: true, 6: false} {
		w, err := Wanted{}.WithCount(spec, "org/Big-Model", us, n)
		var bounds *BoundsError
		switch {
		case allowed && (err != nil || len(w.Numbers(spec, "org/Big-Model", us)) != n):
			t.Errorf("%d: got %v, %v", n, w, err)
		case !allowed && !errors.As(err, &bounds):
			t.Errorf("%d: got %v", n, err)
		case !allowed && !strings.Contains(err.Error(), "must be 3 to 5 (replicas.min and max of service.yaml), got"):
			t.Errorf("%d: got %v", n, err)
		}
	}
	if _, err := (Wanted{}).WithCount(spec, "org/Big-Model", "static/paris", 1); !errors.Is(err, ErrNotLocal) {
		t.Errorf("a static region: got %v", err)
	}
}

func TestOneReplicaStaysOut(t *testing.T) {
	spec := specOf(t, twoRegions)
	w, err := Wanted{}.WithCount(spec, "org/Big-Model", us, 4)
	if err == nil {
		w, err = w.Without(spec, "us-1")
	}
	if got := w.Numbers(spec, "org/Big-Model", us); err != nil || !slices.Equal(got, []int{0, 2, 3}) {
		t.Fatalf("got %v, %v", got, err)
	}
	if _, err := w.Without(spec, "us-0"); err == nil {
		t.Error("fewer than the least were allowed")
	}
	if _, err := w.Without(spec, "us-1"); err == nil || !strings.Contains(err.Error(), `no replica "us-1"`) {
		t.Errorf("twice: got %v", err)
	}
	if w, err = w.WithCount(spec, "org/Big-Model", us, 5); err != nil || !slices.Equal(w.Numbers(spec, "org/Big-Model", us), []int{0, 1, 2, 3, 4}) {
		t.Errorf("added again: got %v, %v", w, err)
	}
}

// What a decision says of service.yaml anyway is not kept, so that the file is
// followed when it changes.
func TestADecisionThatSaysNothingIsDropped(t *testing.T) {
	spec := specOf(t, twoRegions)
	w, err := Wanted{}.WithCount(spec, "org/Big-Model", us, 5)
	if err == nil {
		w, err = w.WithCount(spec, "org/Big-Model", us, 3)
	}
	if err != nil || len(w.Groups) != 0 {
		t.Errorf("got %v, %v", w, err)
	}
	w = Wanted{Groups: []Group{{"gone", us, []int{0, 1, 2, 3}}}, Drained: []string{"eu-0", "gone-1"}}.tidy(spec, []string{})
	if want := (Wanted{Groups: []Group{}, Drained: []string{"eu-0"}}); !reflect.DeepEqual(w, want) {
		t.Errorf("got %v, want %v", w, want)
	}
}

// fill against the plainest way to do the same.
func TestFillEqualsItsTwin(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		numbers := make([]int, r.IntN(6))
		for i := range numbers {
			numbers[i] = r.IntN(9) - 1
		}
		n := r.IntN(8)
		set := map[int]bool{}
		for _, i := range numbers {
			if i >= 0 {
				set[i] = true
			}
		}
		for len(set) < n {
			for i := 0; ; i++ {
				if !set[i] {
					set[i] = true
					break
				}
			}
		}
		var want []int
		for i := 0; len(want) < n; i++ {
			if set[i] {
				want = append(want, i)
			}
		}
		if got := fill(numbers, n); !slices.Equal(got, want) {
			t.Fatalf("fill(%v, %d) = %v, want %v", numbers, n, got, want)
		}
	}
}

func TestLayoutFollowsTheDecisionAndKeepsIt(t *testing.T) {
	svc, spec := newService(t, "chat"), specOf(t, twoRegions)
	w, err := Wanted{}.WithCount(spec, "org/Big-Model", eu, 2)
	if err != nil {
		t.Fatal(err)
	}
	l, err := svc.LayoutOf(spec, w.WithDrained("us-1", true), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Save([]byte(twoRegions)); err != nil {
		t.Fatal(err)
	}
	again, err := svc.Layout(spec, nil)
	if err != nil || !reflect.DeepEqual(again.Wanted, l.Wanted) {
		t.Fatalf("got %v, %v; want %v", again.Wanted, err, l.Wanted)
	}
	var processes, served []string
	for _, w := range again.Wants {
		processes = append(processes, w.ID)
	}
	for _, r := range again.Controller.Replicas {
		served = append(served, r.ID)
	}
	if !slices.Contains(processes, "eu-1") || !slices.Contains(served, "eu-1") {
		t.Errorf("the added replica is missing: %v, %v", processes, served)
	}
	if !slices.Contains(processes, "us-1") || slices.Contains(served, "us-1") {
		t.Errorf("the drained replica must run and not be served: %v, %v", processes, served)
	}
	if err := os.WriteFile(svc.configFile(fileWanted), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := svc.Layout(spec, nil); err == nil || !strings.Contains(err.Error(), "wanted.json") {
		t.Errorf("a damaged file: got %v", err)
	}
}

func TestAControllerIsKeptWhileItsReplicasChange(t *testing.T) {
	svc, spec := newService(t, "chat"), specOf(t, twoRegions)
	find := func(l *Layout) (spec, fixed string) {
		for _, w := range l.Wants {
			if w.ID == provision.ControllerID {
				return w.Spec, w.Fixed
			}
		}
		return "", ""
	}
	before, err := svc.Layout(spec, nil)
	if err == nil {
		err = before.Save([]byte(twoRegions))
	}
	if err != nil {
		t.Fatal(err)
	}
	w, err := Wanted{}.WithCount(spec, "org/Big-Model", eu, 2)
	if err != nil {
		t.Fatal(err)
	}
	after, err := svc.LayoutOf(spec, w, nil)
	if err != nil {
		t.Fatal(err)
	}
	was, wasFixed := find(before)
	is, isFixed := find(after)
	if was == is || wasFixed != isFixed || after.Controller.Revision != is {
		t.Errorf("spec %s -> %s, fixed %s -> %s, revision %s", was, is, wasFixed, isFixed, after.Controller.Revision)
	}
}
