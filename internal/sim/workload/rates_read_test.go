package workload

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReadRates(t *testing.T) {
	const perClient = "model,client,t_s,rate_rps,cv,dist,p1,p2\nm,0,0,1.5,1,Gamma,1,1\nm,0,1200,2,1,Gamma,1,1\nm,1,600,0.5,1,Weibull,1,1\nm,0,1800,0,1,,1,1\n"
	rates, window, err := ReadRates("r", strings.NewReader(gzipped(t, perClient)))
	want := []Rate{{"m", "0", 0, 1.5}, {"m", "0", 20 * time.Minute, 2}, {"m", "1", 10 * time.Minute, 0.5}, {"m", "0", 30 * time.Minute, 0}}
	if err != nil || window != 10*time.Minute || !slices.Equal(rates, want) {
		t.Errorf("%v by %s, %v; want %v", rates, window, err, want)
	}
	rates, window, err = ReadRates("r", strings.NewReader("t_s,total_rps\n0,3\n300,4\n"))
	if err != nil || window != 5*time.Minute || !slices.Equal(rates, []Rate{{"", "", 0, 3}, {"", "", 5 * time.Minute, 4}}) {
		t.Errorf("totals: %v by %s, %v", rates, window, err)
	}
	for text, want := range map[string]string{
		"":                       "reading r:1: the first line is empty",
		azure2023Text:            "reading r:1: the first line must have the columns or JSON keys of a trace format (servegen-rates, servegen-total), got ",
		"t_s,total_rps\n0,x\n":   `reading r:2: total_rps: must be a number from 0 to 1e+06, got "x"`,
		"t_s,total_rps\n0,1,2\n": "reading r:2: row: must have 2 fields",
	} {
		if _, _, err := ReadRates("r", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestFormatOf(t *testing.T) {
	for text, want := range map[string]string{
		mooncakeText: "mooncake", bailianText: "bailian", azure2023Text: "azure-2023", "\ufeff" + azure2024Text: "azure-2024", burstText: "burstgpt",
		sageText: "sageserve", rateTable(1, 1, "", "", "1"): "servegen-rates", "model,t_s,total_rps,active_clients\n": "servegen-total",
		"minute,model,prompt_tokens\n": "", `{"minute":1}`: "", "": "",
	} {
		first, _, _ := strings.Cut(text, "\n")
		if got, ok := FormatOf(first); got != want || ok != (want != "") {
			t.Errorf("%q is %q, want %q", first, got, want)
		}
	}
}

func TestOriginMatchesFile(t *testing.T) {
	for text, want := range map[string]time.Duration{
		mooncakeText:  time.Second,
		azure2024Text: time.Duration(time.Date(2024, 5, 12, 0, 0, 0, 1163000, time.UTC).UnixNano()),
		burstText:     5 * time.Second,
	} {
		tr := openText(t, text, TraceOptions{})
		if _, err := tr.Next(); err != nil || tr.Origin() != want {
			t.Errorf("%.20q begins at %s, %v; want %s", text, tr.Origin(), err, want)
		}
	}
}
