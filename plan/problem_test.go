package plan

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestReadProblem(t *testing.T) {
	data, err := json.Marshal(written())
	if err != nil {
		t.Fatal(err)
	}
	p, err := ReadProblem("p.json", data)
	if err != nil {
		t.Fatal(err)
	}
	if *p.Capacity[0][0] != 9 || p.Capacity[1][0] != nil || *p.Max[0][1] != 7 || p.Max[0][0] != nil {
		t.Fatalf("limits: %v %v", p.Capacity, p.Max)
	}
	again, err := json.Marshal(p)
	if err != nil || string(again) != string(data) {
		t.Fatalf("%s became %s, %v", data, again, err)
	}
}

func TestReadProblemErrors(t *testing.T) {
	good, err := json.Marshal(one())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"syntax":       {`"gpus":`, "\n\"gpus\" ", "reading problem p.json:2: is not valid JSON"},
		"type":         {`"n":[[[2]]]`, `"n":"many"`, "reading problem p.json:1: n: has the wrong type, got a JSON string"},
		"empty":        {string(good), " \n", "reading problem p.json: the file is empty"},
		"unknown key":  {`"max":null`, `"maxx":[[1]]`, "reading problem p.json: maxx: unknown key"},
		"twice":        {`"gpus":["L4"],"n":[[[2]]],"theta":[[1000]],"alpha":[0.8],"sigma":[[0.1]]`, `"gpus":["L4","L4"],"n":[[[2,0]]],"theta":[[1000,900]],"alpha":[0.8,1],"sigma":[[0.1,0]]`, `gpus[1]: must differ from gpus[0], got "L4"`},
		"no name":      {`"models":["m"]`, `"models":[""]`, `models[0]: must not be empty, got ""`},
		"no models":    {`"models":["m"]`, `"models":[]`, "models, regions, gpus: must not be empty, got 0, 1 and 1"},
		"epsilon":      {`"epsilon":0.7`, `"epsilon":0`, "epsilon: must be greater than 0 and at most 1, got 0"},
		"n shape":      {`"n":[[[2]]]`, `"n":[[[2,3]]]`, "n[0][0]: must have 1 entries, got 2"},
		"n missing":    {`"n":[[[2]]]`, `"n":null`, "n: must have 1 entries, got 0"},
		"n negative":   {`"n":[[[2]]]`, `"n":[[[-2]]]`, "n[0][0][0]: must be 0 to 1000000000, got -2"},
		"theta":        {`"theta":[[1000]]`, `"theta":[[-1]]`, "theta[0][0]: must be 0 to 1e15, got -1"},
		"alpha":        {`"alpha":[0.8]`, `"alpha":[0.8,1]`, "alpha: must have 1 entries, got 2"},
		"sigma":        {`"sigma":[[0.1]]`, `"sigma":[[]]`, "sigma[0]: must have 1 entries, got 0"},
		"rho":          {`"rho":[[[500,4200,3000]]]`, `"rho":[[[500,-1]]]`, "rho[0][0][1]: must be 0 to 1e15, got -1"},
		"rho regions":  {`"rho":[[[500,4200,3000]]]`, `"rho":[[]]`, "rho[0]: must have 1 entries, got 0"},
		"capacity":     {`"capacity":null`, `"capacity":[[-1]]`, "capacity[0][0]: must be 0 to 1000000000, got -1"},
		"capacity row": {`"capacity":null`, `"capacity":[[1],[2]]`, "capacity: must have 1 entries, got 2"},
		"min":          {`"min":null`, `"min":[[1,2]]`, "min[0]: must have 1 entries, got 2"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(string(good), c.old, c.new, 1)
			if text == string(good) {
				t.Fatalf("%s is not in %s", c.old, good)
			}
			if _, err := ReadProblem("p.json", []byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func FuzzReadProblem(f *testing.F) {
	good, err := json.Marshal(written())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"models":["m"],"regions":["r"],"gpus":["g"],"n":[[[0]]],"theta":[[0]],"alpha":[0],"sigma":[[0]],"rho":[[[]]],"epsilon":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ReadProblem("p", data)
		if err != nil || len(p.Models)*len(p.Regions)*len(p.GPUs) > 64 {
			return
		}
		r, err := Solve(p, SolveOptions{Effort: 200_000})
		if err != nil {
			t.Fatal(err)
		}
		if r.Counts != nil && (p.Verify(r.Counts) != nil || r.Bound > r.Objective) {
			t.Fatalf("%v: bound %g, cost %g", p.Verify(r.Counts), r.Bound, r.Objective)
		}
		_ = Propose(p, r, ProposalContext{})
	})
}
