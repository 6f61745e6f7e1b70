package openai

import (
	"bytes"
	"mime/multipart"
	"strings"
	"testing"
)

// TestFormModel: the model of a form is its field of that name, as Starlette gives it to the routes of vLLM
// and SGLang: the last of several, and never a file.
func TestFormModel(t *testing.T) {
	const plain = "multipart/form-data; boundary=b"
	field := func(header, value string) string { return "--b\r\n" + header + "\r\n\r\n" + value + "\r\n" }
	model := field(`Content-Disposition: form-data; name="model"`, "whisper")
	file := field("Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav", strings.Repeat("\x00--b \r\n--bb\r\n", 1000))
	const end = "--b--\r\n"
	var written bytes.Buffer
	w := multipart.NewWriter(&written)
	part, _ := w.CreateFormFile("file", "a.wav")
	_, _ = part.Write(bytes.Repeat([]byte{0, '\r', '\n', '-'}, 1<<20))
	_ = w.WriteField("model", "whisper")
	_ = w.Close()
	for name, tt := range map[string]struct{ contentType, body, want string }{
		"before the file":             {plain, model + file + end, "whisper"},
		"after the file":              {plain, file + model + end, "whisper"},
		"Go's writer, a big file":     {w.FormDataContentType(), written.String(), "whisper"},
		"quoted boundary":             {`multipart/form-data; boundary="b"`, file + model + end, "whisper"},
		"boundary with odd bytes":     {`Multipart/Form-Data; charset=utf-8; Boundary="--=_(x) /?:"`, strings.ReplaceAll(file+model+end, "--b", "----=_(x) /?:"), "whisper"},
		"that should be quoted":       {`multipart/form-data; boundary=a/b=c; charset=utf-8`, strings.ReplaceAll(file+model+end, "--b", "--a/b=c"), "whisper"},
		"charset behind":              {plain + "; charset=utf-8", model + end, "whisper"},
		"line feeds alone":            {plain, strings.ReplaceAll(model+"--b\nContent-Disposition: form-data; name=n\n\nx\n"+end, "\r", ""), "whisper"},
		"preamble and epilogue":       {plain, "preamble --b\r\n" + model + end + "epilogue\r\n" + strings.ReplaceAll(model, "whisper", "no"), "whisper"},
		"padding behind the boundary": {plain, strings.Replace(model, "--b\r\n", "--b \t\r\n", 1) + end, "whisper"},
		"no last line break":          {plain, model + "--b--", "whisper"},
		"name without quotes":         {plain, field("content-disposition:form-data;name=model", "whisper") + end, "whisper"},
		"further headers":             {plain, field("X: y\r\nCONTENT-DISPOSITION: FORM-DATA; NAME=\"model\"\r\nContent-Type: text/plain; charset=us-ascii", "whisper") + end, "whisper"},
		"a folded header":             {plain, field("Content-Disposition: form-data;\r\n name=\"model\"", "whisper") + end, "whisper"},
		"extended name":               {plain, field("Content-Disposition: form-data; name*=utf-8''mod%65l", "whisper") + end, "whisper"},
		"twice":                       {plain, model + field(`Content-Disposition: form-data; name="model"`, "other") + end, "other"},
		"exactly what stands there":   {plain, field(`Content-Disposition: form-data; name="model"`, " a\r\n\r\nb") + end, " a\r\n\r\nb"},
		"empty":                       {plain, field(`Content-Disposition: form-data; name="model"`, "") + end, ""},
		"a file of the name":          {plain, field(`Content-Disposition: form-data; name="model"; filename="m"`, "whisper") + end, ""},
		"in another's name":           {plain, field(`Content-Disposition: form-data; name="x[model]"`, "a") + field(`Content-Disposition: form-data; name="models"`, "b") + end, ""},
		"in another's text":           {plain, field(`Content-Disposition: form-data; name="file"; filename="name=\"model\""`, "Content-Disposition: form-data; name=\"model\"\r\n\r\nx") + end, ""},
		"in a form within":            {plain, field("Content-Disposition: form-data; name=x\r\nContent-Type: multipart/mixed; boundary=c", "--c\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nno\r\n--c--") + end, ""},
		"not form-data":               {plain, field(`Content-Disposition: attachment; name="model"`, "x") + end, ""},
		"without the field":           {plain, file + end, ""},
		"broken off":                  {plain, model + strings.TrimSuffix(file, "\r\n"), ""},
		"without an end":              {plain, model, ""},
		"a part without an end":       {plain, model + "--b\r\nContent-Disposition: form-data; name=x\r\n" + end, ""},
		"no parts":                    {plain, end, ""},
		"nothing":                     {plain, "", ""},
		"another boundary":            {"multipart/form-data; boundary=c", model + end, ""},
		"no boundary":                 {"multipart/form-data", model + end, ""},
		"an endless boundary":         {"multipart/form-data; boundary=" + strings.Repeat("b", 1<<10), model + end, ""},
		"another type":                {"multipart/mixed; boundary=b", model + end, ""},
		"JSON":                        {"application/json", `{"model":"x"}`, ""},
		"a bomb of headers":           {plain, model + "--b\r\n" + strings.Repeat("A: b\r\n", 100_000) + "\r\nx\r\n" + end, ""},
		"one long header":             {plain, "--b\r\nContent-Disposition: form-data; name=\"model\"; x=" + strings.Repeat("a", 1<<20) + "\r\n\r\nx\r\n" + end, ""},
		"very many parts":             {plain, strings.Repeat(field("Content-Disposition: form-data; name=x", ""), 100_000) + model + end, ""},
	} {
		if got := FormModel(tt.contentType, []byte(tt.body)); got != tt.want {
			t.Errorf("%s: %q, want %q", name, catalogClip(got), tt.want)
		}
	}
	if got := FormModel(plain, []byte(field(`Content-Disposition: form-data; name="model"`, strings.Repeat("a", 1<<20))+end)); len(got) != maxFormModel {
		t.Errorf("a name of %d bytes", len(got))
	}
}

func catalogClip(s string) string { return s[:min(len(s), 100)] }

// FuzzFormModel: where the library's reader finds the field, so does FormModel.
func FuzzFormModel(f *testing.F) {
	f.Add("b", "x", "y", "z")
	f.Add("--", "\r\n--b", "", "\n")
	f.Fuzz(func(t *testing.T, boundary, before, value, after string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		if w.SetBoundary(boundary) != nil || strings.Contains(before+value+after, boundary) || len(value) > maxFormModel {
			t.Skip()
		}
		_ = w.WriteField("a", before)
		_ = w.WriteField("model", value)
		_ = w.WriteField("b", after)
		_ = w.Close()
		if got := FormModel(w.FormDataContentType(), b.Bytes()); got != value {
			t.Fatalf("%q, want %q", got, value)
		}
	})
}
