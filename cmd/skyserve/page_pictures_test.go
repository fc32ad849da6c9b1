package main

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// plannedService is the service of the picture of a plan.
const plannedService = `name: chat
models:
  - name: meta-llama/Llama-3.1-8B-Instruct
    engine: {kind: vllm}
    gpus: [{type: L4, prompt_tokens_per_second: 1500}, {type: L40S, prompt_tokens_per_second: 4500}]
regions:
  - {name: aws/us-east-1, replicas: {min: 1, max: 12}}
  - {name: gcp/europe-west4, replicas: {min: 1, max: 8}}
balancer: {insecure: true, auth: {keys_from: env:CHAT_KEYS}}
`

// eightDays is a history of the service until 2025-02-01T00:00:00Z, with a peak each day and noise in each minute.
func eightDays() string {
	const end = 28_972_800
	random := rand.New(rand.NewPCG(1, 0))
	var b strings.Builder
	b.WriteString("minute,region,model,tier,prompt_tokens\n")
	for m := end - 8*24*60; m < end; m++ {
		hour := float64(m%(24*60)) / 60
		for _, r := range []struct {
			name                  string
			mean, amplitude, peak float64
		}{{"us-east-1", 360_000, 260_000, 16.6}, {"europe-west4", 190_000, 120_000, 12}} {
			load := r.mean + r.amplitude*math.Cos((hour-r.peak)*math.Pi/12)
			fmt.Fprintf(&b, "%d,%s,meta-llama/Llama-3.1-8B-Instruct,IW-F,%.0f\n", m, r.name, load*(1+0.1*random.NormFloat64()))
		}
	}
	return b.String()
}

// pagePictures are the pictures of HTML pages, each with the command that writes its page, and the page's height in a
// browser at a width of 1200 pixels.
var pagePictures = []struct {
	name, command string
	height        int
}{
	{"page-plan", "plan service.yaml --history week.csv --at 2025-01-31T15:00:00Z --builtin-prices -o html", 1330},
	{"page-sim", "sim run failover --policy cost,skylb,round-robin --seeds 1 -o html", 1210},
}

// pictureOfPage returns an HTML page as a picture, which browsers draw like the page.
func pictureOfPage(t *testing.T, page string, height int) string {
	t.Helper()
	between := func(begin, end string) string {
		_, rest, found := strings.Cut(page, begin)
		inner, _, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("the page has no %s", begin)
		}
		return inner
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1200 %[1]d" width="1200" height="%[1]d" style="width: 1200px">
<style><![CDATA[%[2]s]]></style>
<foreignObject width="1200" height="%[1]d"><body xmlns="http://www.w3.org/1999/xhtml" style="min-height: %[1]dpx">%[3]s</body></foreignObject>
</svg>
`, height, between("<style>", "</style>"), strings.ReplaceAll(between("<body>", "</body>"), "<svg", `<svg xmlns="http://www.w3.org/2000/svg"`))
}

// pageParts are the headings, the columns and the kinds of elements of a picture of a page. Its figures follow the policies
// and the planner.
var pageParts = regexp.MustCompile(`<h[12][^>]*>[^<]*|<th scope="col"[^>]*>[^<]*| class="[a-z ]*"`)

// The pictures of pages in the documentation have the parts of today's pages:
// go test ./cmd/skyserve -run PagePictures -update draws them again.
func TestPagePicturesAreCurrent(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"service.yaml": plannedService, "week.csv": eightDays()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range pagePictures {
		args := strings.Fields(p.command)
		for i, arg := range args {
			if arg == "service.yaml" || arg == "week.csv" {
				args[i] = filepath.Join(dir, arg)
			}
		}
		var page strings.Builder
		root := newRoot()
		root.SetArgs(args)
		root.SetOut(&page)
		root.SetErr(io.Discard)
		if err := root.Execute(); err != nil {
			t.Fatalf("%s: %v", p.command, err)
		}
		got := pictureOfPage(t, page.String(), p.height)
		file := filepath.Join("../../docs/pictures", p.name+".svg")
		if *updateReference {
			if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		parts := func(picture string) []string {
			all := pageParts.FindAllString(picture, -1)
			slices.Sort(all)
			return slices.Compact(all)
		}
		if got, want := parts(got), parts(string(want)); !slices.Equal(got, want) {
			t.Errorf("%s has the parts\n%q\nthe page of today\n%q\nrewrite it with -update", file, want, got)
		}
	}
}
