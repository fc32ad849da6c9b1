package record

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const (
	letters   = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	base64Std = letters + "0123456789+/"
	base64URL = letters + "0123456789-_"
)

// chars returns uniform random texts, as generators of keys make them: those of rapid have many repetitions.
func chars(alphabet string, least, most int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		text := make([]byte, least+random.IntN(most-least+1))
		for i := range text {
			text[i] = alphabet[random.IntN(len(alphabet))]
		}
		return string(text)
	})
}

// tokens are secrets as clouds and model hubs issue them: they are found in every field.
var tokens = rapid.OneOf(
	chars(base64Std, 40, 40), chars(base64Std, 80, 400), chars(base64URL, 40, 200),
	chars("0123456789abcdef", 32, 64),
	rapid.Map(chars("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16, 16), func(s string) string { return "AKIA" + s }),
	rapid.Map(chars(letters, 34, 34), func(s string) string { return "hf_" + s }),
	rapid.Map(chars(base64URL, 60, 120), func(s string) string { return "ya29." + s }),
	rapid.Map(chars(base64URL, 30, 60), func(s string) string { return "eyJ" + s + "." + s + "." + s }),
	rapid.Map(chars(base64Std, 200, 300), func(s string) string {
		return "-----BEGIN PRIVATE KEY-----\n" + s + "\n-----END PRIVATE KEY-----\n"
	}),
)

// passwords have no form: they are found in fields with a sensitive name, or if the environment contains them.
var passwords = rapid.StringMatching(`[A-Za-z!$%&/()=?<>"' ]{4,10}[a-z0-9!$%&<>"]{6}`)

var (
	sensitiveFields = rapid.SampledFrom([]string{"password", "SecretAccessKey", "sessionToken", "X-Amz-Security-Token", "client_secret", "private_key", "userData", "UserData", "accessToken", "access_token", "id_token", "subject_token", "WebIdentityToken", "authorization", "ssh-keys", "X-Amz-Signature", "apiKey", "DB_PASSWORD"})
	ordinaryFields  = rapid.SampledFrom([]string{"name", "description", "InstanceType", "Value", "value", "key", "Message", "NextToken", "labels", "Arn", "selfLink", "items"})
	contexts        = rapid.SampledFrom([][2]string{{"", ""}, {"cannot use ", " here"}, {"x=", ""}, {"", ", see the docs"}, {"https://example.com/a/", "?b=c"}, {"\"", "\""}})
)

// planted is a secret in a field of a message.
type planted struct {
	secret, field, text string
	environment         []string
}

func plant(t *rapid.T) planted {
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 0:
		secret := passwords.Draw(t, "password")
		return planted{secret: secret, field: sensitiveFields.Draw(t, "field"), text: secret}
	case 1:
		secret, around := passwords.Draw(t, "password"), contexts.Draw(t, "context")
		return planted{secret: secret, field: ordinaryFields.Draw(t, "field"), text: around[0] + secret + around[1], environment: []string{"CHAT_KEY=" + secret}}
	default:
		secret, around := tokens.Draw(t, "token"), contexts.Draw(t, "context")
		return planted{secret: strings.Trim(secret, "-\n"), field: rapid.OneOf(sensitiveFields, ordinaryFields).Draw(t, "field"), text: around[0] + secret + around[1]}
	}
}

// jsonOf returns a document with a text at a random depth.
func jsonOf(t *rapid.T, p planted) string {
	var v any = map[string]any{p.field: p.text, "zone": "us-central1-a"}
	if p.environment == nil && p.field != "value" && rapid.Bool().Draw(t, "pair") && sensitive(p.field, true) {
		v = map[string]any{"key": p.field, "value": p.text}
	}
	for range rapid.IntRange(0, 3).Draw(t, "depth") {
		switch rapid.IntRange(0, 2).Draw(t, "around") {
		case 0:
			v = []any{1, v}
		case 1:
			v = map[string]any{"metadata": v, "id": "1"}
		default: // a document inside a text
			text, _ := json.Marshal(v)
			v = map[string]any{"PolicyDocument": string(text)}
		}
	}
	text, _ := json.Marshal(v)
	return string(text)
}

func xmlOf(t *rapid.T, p planted) string {
	inner := "<" + p.field + ">" + escapeXML(p.text) + "</" + p.field + ">"
	switch rapid.IntRange(0, 3).Draw(t, "around") {
	case 0:
		inner = "<tagSet><item>" + inner + "</item></tagSet>"
	case 1:
		inner = "<item a" + p.field + `="` + escapeXML(p.text) + `"></item>`
	case 2:
		inner = "<doc>" + escapeXML(jsonOf(t, p)) + "</doc>"
	}
	return `<?xml version="1.0"?><!-- ` + strings.ReplaceAll(p.text, "--", "") + ` --><Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">` + inner + "</Response>"
}

func formOf(t *rapid.T, p planted) string {
	values := url.Values{"Action": {"RunInstances"}, "Outer." + p.field: {p.text}}
	if rapid.Bool().Draw(t, "document") {
		values.Set("PolicyDocument", jsonOf(t, p))
	}
	if sensitive(p.field, true) {
		values.Set("Tag.1.Key", p.field)
		values.Set("Tag.1.Value", p.text)
	}
	return values.Encode()
}

// message returns the URL, the headers and the body of a message with a secret.
func message(t *rapid.T, p planted) (address string, h http.Header, body string) {
	address, h = "https://ec2.us-east-1.amazonaws.com/path", http.Header{}
	switch rapid.IntRange(0, 5).Draw(t, "place") {
	case 0:
		name := rapid.SampledFrom([]string{"Authorization", "X-Amz-Security-Token", "Cookie", "X-Goog-Iam-Authorization-Token", "Metadata-Token", "X-Unknown"}).Draw(t, "header")
		h.Set(name, strings.ReplaceAll(p.text, "\n", " "))
	case 1:
		address += "?" + url.Values{p.field: {p.text}}.Encode()
	case 2:
		h.Set("Content-Type", "application/x-www-form-urlencoded")
		body = formOf(t, p)
	case 3:
		h.Set("Content-Type", rapid.SampledFrom([]string{"application/json", "application/x-amz-json-1.1", "", "text/plain"}).Draw(t, "type"))
		body = jsonOf(t, p)
	case 4:
		h.Set("Content-Type", rapid.SampledFrom([]string{"text/xml", "application/xml", ""}).Draw(t, "type"))
		body = xmlOf(t, p)
	default:
		body = p.field + ": " + p.text
		if p.environment == nil && !sensitive(p.field, true) {
			body = "An error occurred: " + p.text
		}
		if strings.ContainsAny(p.secret, " \"'&,;<>") && p.environment == nil { // a password with spaces in free text has no end
			body = ""
		}
	}
	return address, h, body
}

// No secret reaches the file: not from a field with a sensitive name, not one of the environment from any
// field, and not one with the form of a token from any field.
func TestNoSecretReachesTheFile(t *testing.T) {
	dir := t.TempDir() + "/calls"
	rapid.Check(t, func(t *rapid.T) {
		p := plant(t)
		r, err := Open(dir, "skyserve up", "test")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		r.redactor = NewRedactor(p.environment)
		address, h, body := message(t, p)
		request, err := http.NewRequest("POST", address, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header = h.Clone()
		response, err := r.Transport(answer{status: 200, header: h, body: body}).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		drain(response)
		if form := fileContains(t, r.Path(), p.secret); form != "" {
			t.Fatalf("the file contains %s of the secret %q in %q %v %s", form, p.secret, address, h, body)
		}
	})
}

// drain reads a response.
func drain(r *http.Response) {
	buffer := make([]byte, 512)
	for {
		if _, err := r.Body.Read(buffer); err != nil {
			break
		}
	}
	r.Body.Close()
}

// FuzzRedactor looks for bodies that break a redactor, or that it changes again when it reads its own output.
func FuzzRedactor(f *testing.F) {
	for _, seed := range []string{`{"a":{"token":"x"}}`, `<a b="c"><d>e</d></a>`, "a=b&c=d", "%7B%22a%22%3A1%7D", "[[[[[[", "-----BEGIN PRIVATE KEY-----"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := NewRedactor([]string{"MY_TOKEN=sesame-open"})
		for _, body := range []string{text, text + "sesame-open"} {
			c := &bodyCopy{}
			c.add([]byte(body))
			for _, kind := range []string{"", "application/x-www-form-urlencoded"} {
				got := r.body(c, http.Header{"Content-Type": {kind}})
				if content := got.Content(); strings.Contains(content, "sesame-open") {
					t.Errorf("%q becomes %q", body, content)
				}
			}
		}
	})
}
