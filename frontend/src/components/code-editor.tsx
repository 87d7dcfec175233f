import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { bracketMatching, HighlightStyle, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { EditorState } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useRef } from "react";

import { cspNonce } from "@/lib/csp";
import type { Remark } from "@/lib/spec-yaml";

interface CodeEditorProps {
  value: string;
  label: string;
  onChange?: (value: string) => void;
  remarks?: Remark[];
  /** YAML is coloured; plain text (a rendered submission) is not. */
  language?: "yaml" | "text";
  minHeight?: number;
  maxHeight?: number;
}

const NO_REMARKS: Remark[] = [];

const palette = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--accent)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--series-2)" },
  { tag: [tags.string, tags.content], color: "var(--ink)" },
  { tag: tags.comment, color: "var(--ink-soft)", fontStyle: "italic" },
  { tag: [tags.punctuation, tags.separator, tags.bracket], color: "var(--ink-soft)" },
]);

function look(minHeight: number, maxHeight: number) {
  return EditorView.theme({
    "&": { fontSize: "13px", backgroundColor: "transparent", color: "var(--ink)", maxHeight: `${maxHeight}px` },
    "&.cm-focused": { outline: "none" },
    ".cm-scroller": {
      fontFamily: "var(--mantine-font-family-monospace)",
      lineHeight: "1.6",
      minHeight: `${minHeight}px`,
    },
    ".cm-content": { caretColor: "var(--accent)", padding: "12px 0" },
    ".cm-gutters": { backgroundColor: "transparent", border: "none", color: "var(--ink-soft)" },
    ".cm-activeLine, .cm-activeLineGutter": {
      backgroundColor: "color-mix(in srgb, var(--ink) 4%, transparent)",
    },
    ".cm-cursor": { borderLeftColor: "var(--accent)" },
    "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": {
      backgroundColor: "color-mix(in srgb, var(--series-2) 24%, transparent) !important",
    },
    ".cm-tooltip": {
      backgroundColor: "var(--surface)",
      border: "1px solid var(--line-strong)",
      borderRadius: "8px",
      overflow: "hidden",
    },
    ".cm-panels": { backgroundColor: "var(--surface-sunken)", color: "var(--ink)" },
  });
}

/**
 * Text with line numbers, undo, search and remarks at their place. Tab indents; Escape then Tab leaves the field,
 * so that the keyboard is not caught in it.
 */
export function CodeEditor(props: CodeEditorProps) {
  const { value, label, onChange, remarks = NO_REMARKS, language = "yaml" } = props;
  const { minHeight = 0, maxHeight = 640 } = props;
  const frame = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(null);
  const report = useRef(onChange);
  const first = useRef(value);
  const readOnly = onChange === undefined;

  useEffect(() => {
    report.current = onChange;
  }, [onChange]);

  useEffect(() => {
    if (frame.current === null) return;
    const editing = readOnly
      ? [EditorState.readOnly.of(true)]
      : [history(), highlightActiveLine(), indentOnInput(), bracketMatching(), lintGutter()];
    const made = new EditorView({
      parent: frame.current,
      state: EditorState.create({
        doc: first.current,
        extensions: [
          lineNumbers(),
          drawSelection(),
          highlightSelectionMatches(),
          ...editing,
          language === "yaml" ? yaml() : [],
          syntaxHighlighting(palette),
          keymap.of([...defaultKeymap, ...searchKeymap, ...historyKeymap, ...(readOnly ? [] : [indentWithTab])]),
          EditorView.lineWrapping,
          EditorView.cspNonce.of(cspNonce() ?? ""),
          EditorView.contentAttributes.of({ "aria-label": label, "aria-multiline": "true" }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) report.current?.(update.state.doc.toString());
          }),
          look(minHeight, maxHeight),
        ],
      }),
    });
    view.current = made;
    return () => {
      made.destroy();
      view.current = null;
    };
  }, [readOnly, language, label, minHeight, maxHeight]);

  // A change from outside (a form field, another preset) replaces the text; the author's own typing does not come back.
  useEffect(() => {
    first.current = value;
    const editor = view.current;
    if (editor === null || editor.state.doc.toString() === value) return;
    editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: value } });
  }, [value]);

  useEffect(() => {
    const editor = view.current;
    if (editor === null || readOnly) return;
    const end = editor.state.doc.length;
    const placed = remarks.map((remark) => ({
      ...remark,
      from: Math.min(remark.from, end),
      to: Math.min(remark.to, end),
    }));
    editor.dispatch(setDiagnostics(editor.state, placed));
  }, [remarks, readOnly, value]);

  return <div ref={frame} data-editor={label} />;
}
