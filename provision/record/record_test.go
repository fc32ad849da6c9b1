package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// answer is a transport with one response, which reads the request's body as a server does.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func (a answer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
		r.Body.Close()
	}
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{StatusCode: a.status, Header: a.header, Body: io.NopCloser(strings.NewReader(a.body)), ContentLength: int64(len(a.body)), Request: r}, nil
}

func send(t *testing.T, over http.RoundTripper, method, address, body string, header http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		r.Header = header
	}
	response, err := over.RoundTrip(r)
	if err != nil {
		return
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
}

func openTest(t *testing.T) *Recorder {
	t.Helper()
	r, err := Open(filepath.Join(t.TempDir(), "calls"), "skyserve up", "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func readTest(t *testing.T, r *Recorder) []Call {
	t.Helper()
	recording, err := ReadFile(r.Path())
	if err != nil {
		t.Fatal(err)
	}
	return recording.Calls
}

var (
	formHeader = http.Header{"Content-Type": {"application/x-www-form-urlencoded; charset=utf-8"}, "Authorization": {"AWS4-HMAC-SHA256 Credential=AKIAEXAMPLEEXAMPLE/20260101/us-east-1/ec2/aws4_request, Signature=0123"}, "X-Amz-Security-Token": {"short"}}
	xmlHeader  = http.Header{"Content-Type": {"text/xml;charset=UTF-8"}, "Set-Cookie": {"session=1"}}
)

func TestCallIsRecordedWithoutSecrets(t *testing.T) {
	r := openTest(t)
	over := r.Transport(answer{status: 200, header: xmlHeader, body: `<?xml version="1.0"?><RunInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><ownerId>210987654321</ownerId><instancesSet><item><instanceId>i-0a1b2c3d4e5f60718</instanceId><tagSet><item><key>password</key><value>hunter2</value></item><item><key>Name</key><value>chat</value></item></tagSet></item></instancesSet></RunInstancesResponse>`})
	send(t, over, "POST", "https://ec2.us-east-1.amazonaws.com/", "Action=RunInstances&UserData=I2Nsb3VkLWNvbmZpZw&InstanceType=g6.xlarge&IamInstanceProfile.Arn=arn%3Aaws%3Aiam%3A%3A210987654321%3Ainstance-profile%2Fskyserve&Tag.1.Key=api-key&Tag.1.Value=pw", formHeader)
	calls := readTest(t, r)
	if len(calls) != 1 {
		t.Fatalf("%d calls, want 1", len(calls))
	}
	c := calls[0]
	form := c.Request.Form
	for name, want := range map[string]string{"Action": "RunInstances", "InstanceType": "g6.xlarge", "IamInstanceProfile.Arn": "arn:aws:iam::100000000001:instance-profile/skyserve"} {
		if form.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, form.Get(name), want)
		}
	}
	for _, name := range []string{"UserData", "Tag.1.Value"} {
		if !placeholders.MatchString(form.Get(name)) {
			t.Errorf("%s is %q, want a placeholder", name, form.Get(name))
		}
	}
	for _, name := range []string{"Authorization", "X-Amz-Security-Token"} {
		if !placeholders.MatchString(c.Request.Headers[name]) {
			t.Errorf("header %s is %q, want a placeholder", name, c.Request.Headers[name])
		}
	}
	for _, want := range []string{"<ownerId>100000000001</ownerId>", "<instanceId>i-0a1b2c3d4e5f60718</instanceId>", "<key>password</key><value>REDACTED-", "<value>chat</value>"} {
		if !strings.Contains(c.Response.XML, want) {
			t.Errorf("the response lacks %q:\n%s", want, c.Response.XML)
		}
	}
	if c.Request.Method != "POST" || c.Request.URL != "https://ec2.us-east-1.amazonaws.com/" || c.Response.Status != 200 || c.Time.IsZero() {
		t.Errorf("recorded %+v", c)
	}
}

func TestHarmlessTextsAreKept(t *testing.T) {
	for _, text := range []string{
		"i-0a1b2c3d4e5f60718", "us-central1-a", "DescribeInstanceTypeOfferings", "AuthorizeSecurityGroupIngress", "com.amazonaws.us-east-1.ec2",
		"2026-01-02T03:04:05.678Z", "ami-0abcdef0123456789", "10.0.0.0/16", "ubuntu-os-cloud/ubuntu-2404-lts-amd64", "g6e.12xlarge",
		"/hostedzone/Z0123456789ABCDEFGHIJ", "6e1f8a3c-0b1d-4c2e-9f3a-5b6c7d8e9f0a",
		"ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20260101", "skyserve-replica-chat--us-central1-0", "https://www.googleapis.com/auth/compute",
		"You are not authorized to perform this operation.", "VcpuLimitExceeded", "InvalidLaunchTemplateName.NotFoundException",
		`resource.type != "compute.googleapis.com/Instance"`, "nvidia-l4-vws", "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64",
		"Mozilla/5.0", "aws-sdk-go-v2/1.47.7 ua/2.1 os/linux lang/go#1.26.0", "SERVICE_UNAVAILABLE", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
	} {
		if got := NewRedactor(nil).Value(text); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}

func TestUploadIDsAreRemoved(t *testing.T) {
	u, err := url.Parse("https://storage.googleapis.com/upload/storage/v1/b/bucket/o?uploadType=resumable&upload_id=1234")
	if err != nil {
		t.Fatal(err)
	}
	if got := NewRedactor(nil).URL(u); strings.Contains(got, "1234") || !strings.Contains(got, "uploadType=resumable") {
		t.Errorf("got %s", got)
	}
}

func TestProjectsHavePseudonyms(t *testing.T) {
	r := NewRedactor(nil)
	got := r.Value("https://compute.googleapis.com/compute/v1/projects/acme-prod-7/zones/us-central1-a")
	if want := "https://compute.googleapis.com/compute/v1/projects/project-00001/zones/us-central1-a"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := r.Value("Required permission for acme-prod-7, project number 123456789012"), "Required permission for project-00001, project number 100000000002"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := r.Value("project-00001"); got != "project-00001" {
		t.Errorf("a pseudonym becomes %q", got)
	}
}

func TestFilesArePrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "calls")
	r, err := Open(dir, "skyserve up", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for path, want := range map[string]os.FileMode{dir: 0o700, r.Path(): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v (%v), want %v", path, info.Mode(), err, want)
		}
	}
	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(open, "skyserve up", "test"); err == nil || !strings.Contains(err.Error(), "got mode 0755") {
		t.Errorf("a directory for others: %v", err)
	}
}

// Text beside the children of an element with a sensitive name is a secret too.
func TestTextBesideElementsIsHidden(t *testing.T) {
	r := openTest(t)
	send(t, r.Transport(answer{status: 200, header: xmlHeader, body: "<R><Secret>hunter2<b/> </Secret><Note>chat<b/></Note></R>"}), "GET", "http://x/", "", nil)
	got := readTest(t, r)[0].Response.XML
	if strings.Contains(got, "hunter2") || !strings.Contains(got, "<Secret>REDACTED-") || !strings.Contains(got, "<Note>chat<b></b></Note>") {
		t.Errorf("recorded %s", got)
	}
}

func TestBodiesThatCannotBeCheckedAreOmitted(t *testing.T) {
	for name, c := range map[string]struct {
		header http.Header
		body   string
		want   string
	}{
		"binary":            {nil, "\xff\xfe\x00", "binary"},
		"part of a binary":  {http.Header{"Content-Type": {"application/octet-stream"}}, "\x00\x00", "binary"},
		"unreadable JSON":   {nil, `{"a":`, "unreadable JSON"},
		"two JSON values":   {nil, `{} {}`, "unreadable JSON"},
		"unreadable XML":    {nil, `<a><b></a>`, "unreadable XML"},
		"open XML":          {nil, `<a><b>`, "unreadable XML"},
		"other compression": {http.Header{"Content-Encoding": {"br"}}, "text", "cannot be decompressed"},
	} {
		r := openTest(t)
		send(t, r.Transport(answer{status: 200, header: c.header, body: c.body}), "GET", "http://x/", "", nil)
		if got := readTest(t, r)[0].Response; got.Omitted != c.want {
			t.Errorf("%s: recorded %+v, want omitted %q", name, got, c.want)
		}
	}
}

func TestCallWithoutResponseIsRecorded(t *testing.T) {
	r := openTest(t)
	send(t, r.Transport(answer{err: errors.New("dial: no such host")}), "GET", "http://x/", "", nil)
	if c := readTest(t, r)[0]; c.Response != nil || c.Error != "dial: no such host" {
		t.Errorf("recorded %+v", c)
	}
}

func TestCallerReceivesBodiesUnchanged(t *testing.T) {
	r := openTest(t)
	const sent, received = `{"password":"hunter2"}`, `{"token":"abc"}`
	over := r.Transport(roundTrip(func(q *http.Request) (*http.Response, error) {
		text, err := io.ReadAll(q.Body)
		if err != nil || string(text) != sent {
			t.Errorf("the server received %q (%v)", text, err)
		}
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(received)), ContentLength: -1}, nil
	}))
	q, _ := http.NewRequestWithContext(context.Background(), "POST", "http://x/", strings.NewReader(sent))
	response, err := over.RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || string(text) != received {
		t.Errorf("the caller received %q (%v)", text, err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A process that is killed leaves whole lines, and concurrent calls do not mix.
func TestConcurrentCallsHaveLinesOfTheirOwn(t *testing.T) {
	r := openTest(t)
	over := r.Transport(answer{status: 200, body: `{"items":[1,2,3]}`})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { send(t, over, "POST", "http://x/compute/v1/projects/p", `{"a":1}`, nil) })
	}
	wg.Wait()
	file, err := os.OpenFile(r.Path(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`{"n":51,"tim`); err != nil {
		t.Fatal(err)
	}
	file.Close()
	calls := readTest(t, r)
	if len(calls) != 50 {
		t.Fatalf("%d calls, want 50", len(calls))
	}
	for i, c := range calls {
		if c.Number != i+1 || string(c.Request.JSON) != `{"a":1}` || string(c.Response.JSON) != `{"items":[1,2,3]}` {
			t.Fatalf("call %d is %+v", i+1, c)
		}
	}
}

func TestFullDiskEndsTheRecordingOnly(t *testing.T) {
	r := openTest(t)
	r.file.Close()
	send(t, r.Transport(answer{status: 200, body: "{}"}), "GET", "http://x/", "", nil)
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), r.Path()) {
		t.Errorf("the error is %v, want one that names the file", err)
	}
}

func TestReadNamesTheLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	for content, want := range map[string]string{
		"{\"skyserve_recording\":1}\n{]\n": "a.jsonl:2: ",
		"{\"skyserve_recording\":9}\n":     "skyserve_recording must be 1, got 9",
		"{}\n":                             "skyserve_recording must be 1, got 0",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", content, err, want)
		}
	}
}

// fileContains reports which form of a secret the file contains; empty for none. A piece of the secret of
// windowLength characters counts.
func fileContains(t interface{ Fatal(...any) }, path, secret string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	quoted, _ := json.Marshal(secret)
	for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), strings.Trim(string(quoted), `"`), escapeXML(secret)} {
		if bytes.Contains(text, []byte(form)) {
			return form
		}
	}
	for i := 0; i+windowLength <= len(secret); i++ {
		if bytes.Contains(text, []byte(secret[i:i+windowLength])) {
			return fmt.Sprintf("the piece %q", secret[i:i+windowLength])
		}
	}
	return ""
}

const windowLength = 14
