package proxy

import (
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"skyserve/internal/service"
	"skyserve/lbd/openai"
)

// guardedRequests are requests with a guarded parameter, and the name that allows it.
var guardedRequests = []struct{ path, body, name string }{
	{textPath, `{"model":"M","prompt":"","prompt_embeds":"AAAA"}`, "prompt_embeds"},
	{chatPath, `{"model":"M","messages":[{"role":"user","content":[{"type":"prompt_embeds","prompt_embeds":"AAAA"}]}]}`, "prompt_embeds"},
	{chatPath, `{"model":"M","messages":[{"role":"user","content":[{"type":"image_embeds","image_embeds":{"a":"AAAA"}}]}]}`, "image_embeds"},
	{chatPath, `{"model":"M","messages":[{"role":"user","content":[{"type":"text","text":"t","image_embeds":"AAAA"}]}]}`, "image_embeds"},
	{chatPath, `{"model":"M","messages":[{"role":"user","content":[{"type":"audio\u005fembeds","text":"t"}]}]}`, "audio_embeds"},
	{chatPath, `{"model":"M","messages":[],"kv_transfer_params":{"remote_host":"10.0.0.1"}}`, "kv_transfer_params"},
	{chatPath, `{"model":"M","messages":[],"ec_transfer_params":{}}`, "ec_transfer_params"},
	{chatPath, `{"model":"M","messages":[],"vllm_xargs":{"kv_transfer_params":"x"}}`, "vllm_xargs"},
	{chatPath, `{"model":"M","messages":[],"bootstrap_host":"10.0.0.1"}`, "bootstrap_host"},
	{chatPath, `{"model":"M","messages":[],"bootstrap_port":1}`, "bootstrap_port"},
	{chatPath, `{"model":"M","messages":[],"bootstrap_room":1}`, "bootstrap_room"},
	{chatPath, `{"model":"M","messages":[],"chat_template":"{% for i in range(9**9) %}{% endfor %}"}`, "chat_template"},
	{chatPath, `{"model":"M","messages":[],"chat_template_kwargs":{"chat_template":"{{ 1 }}"}}`, "chat_template"},
	{chatPath, `{"model":"M","messages":[],"chat_template_kwargs":{"thinking":true,"tok\u0065nize":true}}`, "chat_template"},
	{"/tokenize", `{"model":"M","messages":[],"chat_template":"{{ 1 }}"}`, "chat_template"},
	{chatPath, `{"model":"M","messages":[],"mm_processor_kwargs":{"max_pixels":999999999}}`, "mm_processor_kwargs"},
	{chatPath, `{"model":"M","messages":[],"media_io_kwargs":{"video":{"fps":1e9}}}`, "media_io_kwargs"},
	{chatPath, `{"model":"M","messages":[],"custom_logit_processor":"{}"}`, "custom_logit_processor"},
	{chatPath, `{"model":"M","messages":[],"guided_decoding_backend":"outlines"}`, "guided_decoding_backend"},
	{chatPath, image("file:///etc/passwd"), "file_urls"},
	{chatPath, image("FILE:/etc/passwd"), "file_urls"},
	{chatPath, image("/etc/passwd"), "file_urls"},
	{chatPath, image(" ftp://example.com/a.png"), "file_urls"},
	{chatPath, image("http://127.0.0.1:8000/metrics"), "private_urls"},
	{chatPath, image("http://169.254.169.254/latest/meta-data"), "private_urls"},
	{chatPath, image("https://[::1]/a"), "private_urls"},
	{chatPath, image("http://[::ffff:10.0.0.1]/a"), "private_urls"},
	{chatPath, image("http://2130706433/a"), "private_urls"},
	{chatPath, image("http://0x7f.1/a"), "private_urls"},
	{chatPath, image("http://localhost:9/a"), "private_urls"},
	{chatPath, image("http://metadata.google.internal./a"), "private_urls"},
	{chatPath, image("http://metadata/a"), "private_urls"},
	{chatPath, image("http://example.com@10.0.0.1/a"), "private_urls"},
	{chatPath, image(`http://10.0.0.1\\@example.com/a`), "private_urls"},
	{chatPath, image("http:10.0.0.1/a"), "private_urls"},
	{"/v1/responses", `{"model":"M","input":[{"role":"user","content":[{"type":"input_image","image_url":"file:///etc/passwd"}]}]}`, "file_urls"},
	{"/v1/embeddings", strings.Replace(image("file:///etc/passwd"), `"n":1`, `"input":"a"`, 1), "file_urls"},
	{"/v1/embeddings", `{"model":"M","input":[{"text":"a","image":"/etc/passwd"}]}`, "file_urls"},
	{"/v1/embeddings", `{"model":"M","input":{"image":"..\/key.png"}}`, "file_urls"},
	{"/v1/embeddings", `{"model":"M","input":[{"text":"a"},{"video":"http://169.254.169.254/a"}]}`, "private_urls"},
	{"/v1/rerank", `{"model":"M","query":"a","documents":{"content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}}`, "file_urls"},
	{"/v1/rerank", `{"model":"M","query":"a","documents":["b",{"content":[{"type":"image_embeds","image_embeds":"AAAA"}]}]}`, "image_embeds"},
	{"/v1/rerank", `{"model":"M","query":"a","documents":[[{"type":"image_url","image_url":{"url":"http://10.0.0.1/a"}}]]}`, "private_urls"},
	{"/v1/rerank", `{"model":"M","query":[{"type":"video_url","video_url":{"url":"http://10.0.0.1/a"}}],"documents":["b"]}`, "private_urls"},
}

// image returns a chat with an image at an address.
func image(url string) string {
	return `{"model":"M","n":1,"messages":[{"role":"user","content":[{"type":"text","text":"what is it?"},{"type":"image_url","image_url":{"url":"` + url + `"}}]}]}`
}

// harmless are similar requests that are allowed.
var harmless = []struct{ path, body string }{
	{chatPath, `{"model":"M","messages":[{"role":"user","content":"chat_template"}],"chat_template_kwargs":{"enable_thinking":false,"documents":[]},"chat_template":null}`},
	{chatPath, image("https://example.com/a.png?b=http://10.0.0.1")},
	{chatPath, image("https://203.0.113.7:8443/a.png")},
	{chatPath, image("HTTPS://cdn.example.co.uk/a.png")},
	{chatPath, image("data:image/png;base64,AAAA")},
	{chatPath, `{"model":"M","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}]}],"prompt_embeds":null}`},
	{"/v1/embeddings", `{"model":"M","input":[{"text":"a: b.","image":"/9j/4AAQSkZJRg=="},{"image":"iVBORw0KGgo="},{"image":"https://example.com/a.png"}]}`},
	{"/v1/embeddings", `{"model":"M","input":[[1,2],[3]]}`},
	{"/v1/rerank", `{"model":"M","query":"a","documents":["http://10.0.0.1/a",{"content":[{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}]}]}`},
	{textPath, `{"model":"M","prompt":"see file:///etc/passwd and http://10.0.0.1"}`},
}

func TestGuardedParametersAreRejected(t *testing.T) {
	var requested atomic.Int64
	b := start(t, roundRobin(t))
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) { requested.Add(1); whole(plainReply)(w, req) }))
	seen := map[string]bool{}
	for _, g := range guardedRequests {
		body := strings.Replace(g.body, `"M"`, `"`+testModel+`"`, 1)
		b.SetAllowedParameters(nil)
		resp := b.post(g.path, body)
		text := read(t, resp)
		message, kind, code := apiErrorOf(t, text)
		if resp.StatusCode != http.StatusBadRequest || code != "parameter_not_allowed" || kind != openai.TypeInvalid || !strings.HasPrefix(message, g.name+": ") || !strings.Contains(message, "allow_parameters") {
			t.Errorf("%s: %d %s %s %q", g.body, resp.StatusCode, kind, code, message)
			continue
		}
		b.SetAllowedParameters([]string{g.name})
		before := requested.Load()
		expect(t, b.post(g.path, body), http.StatusOK, "")
		if requested.Load() != before+1 {
			t.Errorf("%s was allowed and did not reach the engine", g.body)
		}
		seen[g.name] = true
	}
	for _, p := range service.GuardedParameters() {
		if !seen[p.Name] {
			t.Errorf("nothing here has %s", p.Name)
		}
	}
	b.SetAllowedParameters(nil)
	for _, h := range harmless {
		expect(t, b.post(h.path, strings.Replace(h.body, `"M"`, `"`+testModel+`"`, 1)), http.StatusOK, "")
	}
}

// A peer does not check parameters again that the origin allowed.
func TestForwardedParametersAreNotRechecked(t *testing.T) {
	us, eu := pair(t, "secret")
	us.SetAllowedParameters([]string{"chat_template"})
	eu.attach("eu-0", engine(t, whole(plainReply)))
	us.receiveReport("lb-eu-0")
	expect(t, us.post(chatPath, strings.Replace(plainBody, `"messages"`, `"chat_template":"x","messages"`, 1)), http.StatusOK, "")
}

// The documentation lists every guarded parameter.
func TestGuardedParametersAreDocumented(t *testing.T) {
	for _, page := range []string{"../../docs/security.md", "../../docs/service-yaml.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range service.GuardedParameters() {
			if !strings.Contains(string(text), "`"+p.Name+"`") {
				t.Errorf("%s does not name %s", page, p.Name)
			}
		}
	}
}
